"""What a short look at a broker finds: `mq.admin.health()` says it, on its host and over TCP.

    keeper, store, space    words of the control segment
    files …                 that other programs changed under the broker (`shmq.changed_files`)
    master …, replica …     its links to other hosts (`shmq.shm.links`)

What is wrong is decided where `shmq health` has it from. Thresholds of users, processes and disks are for that one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shmq.changed_files import faults_of_files, read_changed_files
from shmq.shm.core import READ_ONLY_FOLLOWER, READ_ONLY_REASONS
from shmq.shm.instance import Instance
from shmq.shm.links import (
    SILENT_MS_MAX,
    LinkFault,
    MasterLink,
    ReplicaLink,
    fault_of_lost,
    fault_of_master,
    fault_of_replica,
    read_links,
)
from shmq.shm.liveness import KEEPER_BEAT_CRITICAL_SECONDS, KEEPER_BEAT_WARNING_SECONDS

if TYPE_CHECKING:
    from shmq.shm.core import Store

Verdict = Literal["OK", "WARNING", "CRITICAL"]
_ORDER: tuple[Verdict, ...] = ("OK", "WARNING", "CRITICAL")


class Check(NamedTuple):
    """One thing looked at; `figures` are raw numbers."""

    name: str
    verdict: Verdict
    text: str
    figures: dict[str, int]


class Health(NamedTuple):
    """All checks, and the worst verdict."""

    verdict: Verdict
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists."""
        return {"verdict": self.verdict, "checks": [check._asdict() for check in self.checks]}


def health_of(checks: Sequence[Check]) -> Health:
    """Return checks with their worst verdict."""
    return Health(max((check.verdict for check in checks), key=_ORDER.index), tuple(checks))


def broker_checks(store: Store, instance: Instance, links_path: Path) -> list[Check]:
    """Look at a broker of this host: its store, its files, and what it tells of other hosts."""
    is_slave, now_ms = store.read_only == READ_ONLY_FOLLOWER, time.monotonic_ns() // 1_000_000
    links = link_checks(links_path, is_slave=is_slave, now_ms=now_ms)
    return [*store_checks(store), *file_checks(instance), *links]


def store_checks(store: Store) -> tuple[Check, ...]:
    """Look at the store, and whether it is kept."""
    return _keeper(store), _store(store), _space(store)


def file_checks(instance: Instance) -> Iterator[Check]:
    """Yield a check for each file, or for all that were written again, that is not as the broker made it."""
    for fault in faults_of_files(read_changed_files(instance), instance.store_path):
        verdict: Verdict = "CRITICAL" if fault.is_critical else "WARNING"
        figures = {"files_changed": fault.mended} if fault.mended else {}
        yield Check(f"files {fault.name}", verdict, f"{fault.what}: {fault.why}; {fault.do}", figures)


def link_checks(path: Path, *, is_slave: bool, now_ms: int) -> Iterator[Check]:
    """Yield a check for each link to another host.

    Args:
        path: of links.json.
        is_slave: so there has to be one.
        now_ms: monotonic.
    """
    links = read_links(path)
    if links is None or now_ms - links.at_ms > SILENT_MS_MAX:
        if links is not None or is_slave:
            text = "nothing is told of other hosts: the replication process is stopped, or cannot write; shmq health"
            yield Check("replication", "WARNING", text, {})
        return
    for replica in links.replicas:
        age, lag_seconds = (now_ms - replica.since_ms) / 1000, (replica.lag_ms or 0) / 1000
        yield _check("replica", replica, fault_of_replica(replica.state, age=age, lag_seconds=lag_seconds))
    for lost, is_refused in [(row, False) for row in links.gone] + [(row, True) for row in links.refused]:
        age = (now_ms - lost.at_ms) / 1000
        fault = fault_of_lost(is_refused=is_refused, age=age, reason=lost.reason, cure=lost.cure)
        if fault is not None:
            text = f"{'refused' if is_refused else 'gone'}: {fault.why}; {fault.do}"
            yield Check(f"replica {lost.address}", "WARNING", text, {"age_ms": now_ms - lost.at_ms})
    if links.master is not None:
        yield _check("master", links.master, _fault_of(links.master, now_ms))


def _fault_of(master: MasterLink, now_ms: int) -> LinkFault | None:
    age, heard_age, error_age = (
        None if at_ms is None else (now_ms - at_ms) / 1000
        for at_ms in (master.since_ms, master.heard_ms, master.error_ms)
    )
    return fault_of_master(
        master.state,
        age=age,
        heard_age=heard_age,
        lag_seconds=(master.lag_ms or 0) / 1000,
        error=master.error,
        cure=master.cure,
        error_age=error_age,
    )


def _check(name: str, link: ReplicaLink | MasterLink, fault: LinkFault | None) -> Check:
    verdict: Verdict = "OK" if fault is None else "CRITICAL" if fault.is_critical else "WARNING"
    text, figures = link.state, {}
    if link.lag_bytes is not None and link.lag_ms is not None:
        text += f", {link.lag_bytes} bytes and {link.lag_ms} ms behind"
        figures = {"lag_bytes": link.lag_bytes, "lag_ms": link.lag_ms}
    return Check(f"{name} {link.address}", verdict, f"{text}: {fault.why}; {fault.do}" if fault else text, figures)


def _keeper(store: Store) -> Check:
    age_ms = max(0, time.monotonic_ns() - store.keeper_beat_ns) // 1_000_000
    verdict: Verdict = "OK"
    if age_ms >= KEEPER_BEAT_WARNING_SECONDS * 1000:
        verdict = "WARNING" if age_ms < KEEPER_BEAT_CRITICAL_SECONDS * 1000 else "CRITICAL"
    return Check("keeper", verdict, f"the store keeper's last round was {age_ms} ms ago", {"beat_age_ms": age_ms})


def _store(store: Store) -> Check:
    reason = store.read_only
    if reason and reason != READ_ONLY_FOLLOWER:
        words = READ_ONLY_REASONS.get(reason, f"reason {reason}")
        return Check("store", "CRITICAL", f"the store is read-only: {words}", {"read_only": reason})
    if store.retired:
        return Check("store", "CRITICAL", "this generation of segments was given up", {"retired": 1})
    behind = max(0, store.log_end - store.durable_end)
    kind = "a slave" if reason else "writable"
    return Check("store", "OK", f"{kind}, {behind} bytes not flushed yet", {"flush_behind_bytes": behind})


def _space(store: Store) -> Check:
    free = max(0, store.allocated_end - store.log_end)
    file_bytes = int(store.head["file_bytes"]) if "file_bytes" in store.head else int(store.head["sizes"]["file_bytes"])
    figures = {"allocated_free_bytes": free, "file_bytes": file_bytes}
    # Less than a tenth of a file left means that the keeper has not made the next one, as it does long before.
    verdict: Verdict = "OK" if free * 10 >= file_bytes else "WARNING" if free else "CRITICAL"
    return Check("space", verdict, f"{free} bytes of the log are allocated ahead", figures)
