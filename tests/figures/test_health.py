"""One judge: whatever is wrong with a broker, every door says the same of it, word for word.

shmq health, Nagios    all findings of a snapshot
mq.admin.health()      of the broker itself, on its host and over TCP
shmq doctor, shmq top  those that it shows
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import shmq
from shmq.client.administration.remote_figures import cluster_health
from shmq.figures.changed_files import ACCESS, LOST, RESTORED, ChangedFile
from shmq.figures.health import attached_findings
from shmq.figures.observer import Observer
from shmq.figures.snapshot import (
    Claim,
    Counted,
    Election,
    Lock,
    LostReplica,
    Master,
    Memory,
    Recovery,
    Replica,
    Scrub,
    Snapshot,
)
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict, health_of, worst
from shmq.protocol.body import CHECKS
from shmq.shm.core import READ_ONLY_FOLLOWER, READ_ONLY_REASONS
from shmq.testing import Broker
from shmq.tools.doctor import disk, machine
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import WORDS, document_of
from shmq.tools.doctor.health import check_health
from shmq.tools.doctor.host import Host
from shmq.tools.health.examine import all_findings, examine
from shmq.tools.health.report import Report
from shmq.tools.health.room_rules import room_findings
from shmq.tools.terminal.rendering import text_of
from shmq.tools.top.rates import picture_of
from shmq.tools.top.view import Choice, page
from tests.deadline import eventually
from tests.tables.rows import every_row
from tests.tools.health.test_rules import BROKER, DISK, FOLLOWING, GIB, LOG, MEMORY, PROCESSES, SNAPSHOT

MIB = 1 << 20
FAULTY = Counted(3, 60.0, 2, 60.0)
HOST_ONLY = {"memory", "segments", "process", "lock", "claim", "versions"}
"""Checks that take a look at the whole host, or for a while."""
DOCTORS_OWN = {"memory", "disk", "segments", "versions", "group"}
QUEUES = "segments queues"
"""The table of queues is the broker's, and not the host's; nor has doctor a check of its own for it."""


def told_of_hosts(**parts: Any) -> dict[str, Any]:
    return {"replication": FOLLOWING._replace(**parts)}


def files(*fates: str) -> dict[str, Any]:
    changed = tuple(ChangedFile(f"/store/{fate}", fate, "was changed", "") for fate in fates)
    return {"counted": Counted(0, None, 0, None, changed)}


SCENES: dict[str, dict[str, Any]] = {
    "well": {},
    **{f"beat {beat}": {"broker": BROKER._replace(keeper_beat_age=beat)} for beat in (2.9, 3.0, 4.0, 9.9, 10.0)},
    **{
        f"read-only {reason}": {"broker": BROKER._replace(read_only=reason, read_only_text="r"), **told_of_hosts()}
        for reason in READ_ONLY_REASONS
    },
    "retired": {"broker": BROKER._replace(retired=True)},
    "a slave of nothing known": {"broker": BROKER._replace(read_only=READ_ONLY_FOLLOWER, read_only_text="r")},
    "quarantined": {"broker": BROKER._replace(quarantined=3)},
    "keeper dead": {"processes": (PROCESSES[0], PROCESSES[1]._replace(alive=False, state="dead"), PROCESSES[2])},
    "bridge stopped": {"processes": (*PROCESSES[:2], PROCESSES[2]._replace(state="stopped"))},
    "nothing served": {"processes": (), "broker": BROKER._replace(served=False)},
    **{f"flush {size}": {"log": LOG._replace(flush_behind_bytes=size)} for size in (63 * MIB, 64 * MIB, GIB)},
    **{f"ahead {size}": {"log": LOG._replace(allocated_end=1000 + size)} for size in (GIB // 10 + 1, GIB // 20, 0)},
    **{f"queues {taken}": {"log": LOG._replace(queues_taken=taken, queues_max=100)} for taken in (79, 80, 95)},
    "no slave in sync": {"log": LOG._replace(replicas_in_sync=0)},
    **{f"disk {used}": {"disk": DISK._replace(used_percent=used)} for used in (74, 75, 85, 90, 91)},
    "disk read-only": {"disk": DISK._replace(writable=False)},
    "damage": {"recovery": Recovery(60.0, 0.5, False, 100, 3, 0, 2)},
    "another's file": {"recovery": Recovery(60.0, 0.5, False, 100, 3, 0, 0, foreign_files=1)},
    "scrubbed": {"scrub": Scrub(60.0, 100, 1, 0, 0)},
    "counted": {"counted": FAULTY},
    "files": files(LOST, ACCESS, RESTORED),
    "silent": told_of_hosts(age=6.0),
    "lag": told_of_hosts(replicas=(Replica("h:1", "shmq", "catching up", 60.0, 1, 1, 64 * MIB, 0),)),
    "slow": told_of_hosts(replicas=(Replica("h:1", "shmq", "catching up", 60.0, 1, 1, 0, 11_000),)),
    "gone": told_of_hosts(gone=(LostReplica("h:1", "it ended", "", 60.0, 1),)),
    "lost": told_of_hosts(master=Master("h:1", "shmq", "lost", None, 60.0, 0, 0, "no route", "mend it", 1.0)),
    "unheard": told_of_hosts(master=Master("h:1", "shmq", "up to date", 60.0, 9.0, 0, 0, "", "", None)),
    "lease": told_of_hosts(election=Election("leading", "s", "s", ("s",), 4.0, "", "elected")),
    "no master": told_of_hosts(election=Election("waiting", "s", "", (), None, "etcd is away", "")),
    "lock": {"lock": Lock(50, 50, 500, "python", "stopped", 0.1)},
    "claim": {"claim": Claim(50, 500, False, "dead", 4096, 0.1)},
    "memory": {"memory": MEMORY._replace(shm_free_bytes=0)},
}


class Seen:
    """What a look would see: the parts of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.faults = snapshot.faults
        self.broker = lambda store: snapshot.broker
        self.processes = lambda clients, depth: snapshot.processes
        self.log = lambda store, depth: snapshot.log
        for part in ("disk", "recovery", "scrub", "replication", "counted"):
            setattr(self, part, lambda part=part: getattr(snapshot, part))


@every_row("scene", list(SCENES))
def test_every_door_says_the_same_word_for_word(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot: Any = SNAPSHOT._replace(**SCENES[scene])
    found = list(all_findings(snapshot, Thresholds(), "quick"))
    assert (
        scene == "well"
        or scene.split()[0] in ("beat", "flush", "ahead", "queues", "disk", "read-only")
        or any(each.verdict is not Verdict.OK for each in found)
    )
    assert all(each.why and each.do for each in found if each.verdict is not Verdict.OK), found

    monkeypatch.setattr("shmq.figures.health.Look", lambda place: Seen(snapshot))
    nothing: Any = None
    client = attached_findings(nothing, nothing)
    assert client == [each for each in found if each.check not in HOST_ONLY or each.name == QUEUES]
    assert health_of(client).verdict is worst(client)

    rows = [(each.name, each.verdict, each.text) for each in client if each.verdict is not Verdict.OK]
    remote = cluster_health({"b": {CHECKS: msgspec.json.encode(rows).decode()}})
    assert remote.verdict is worst(client)

    place = SimpleNamespace(broker_name="b")
    case = Case(place, Host(), object(), snapshot, ())  # type: ignore[arg-type]
    doctors = [each for each in check_health(case) if each.verdict is not Verdict.OK]
    wrong = [each for each in found if each.verdict is not Verdict.OK]
    assert [_said(each) for each in doctors] == [
        _said(each) for each in wrong if each.check not in DOCTORS_OWN or each.name == QUEUES
    ]
    assert all(document_of(each)["verdict"] == WORDS[each.verdict] for each in doctors)

    line = Report(snapshot, found).nagios()
    assert line.startswith(worst(found)) and all(each.what in line for each in wrong[:1])
    shown = text_of(page(picture_of(snapshot, snapshot), Choice(), width=100_000))
    stops = [each for each in wrong if each.check in ("daemon", "store", "lock", "claim", "master", "election")]
    assert all(each.what in shown for each in stops), (stops, shown)


def _said(finding: Finding) -> tuple[Verdict, str, str, str, str]:
    return finding.verdict, finding.subject, finding.what, finding.why, finding.do


@every_row("percent", [0, 74, 75, 79, 80, 85, 89, 90, 91, 94, 95, 96, 97, 100])
def test_doctor_judges_room_as_health_does(percent: int) -> None:
    """The kind of a disk and of /dev/shm is doctor's matter, and how full they are is not."""
    memory = Memory(100 * GIB, (100 - percent) * GIB, "/g", 1000, 10 * percent, 0)
    snapshot: Any = SNAPSHOT._replace(memory=memory, disk=DISK._replace(used_percent=percent))
    host: Any = SimpleNamespace(
        mount_of=lambda path: SimpleNamespace(kind="tmpfs", options=()), text=lambda path: "", is_container=False
    )
    case = Case(SimpleNamespace(broker_name="b"), host, None, snapshot, ())  # type: ignore[arg-type]
    judged = {each.subject: each.verdict for each in room_findings(snapshot, Thresholds())}
    [shm], [group], [room] = machine.check_shm(case), machine.check_control_group(case), disk.check_room(case)
    assert shm.verdict is judged["/dev/shm"] and group.verdict is judged["cgroup"]
    assert room.verdict is judged[DISK.path]


def test_a_client_says_of_its_broker_what_the_command_says() -> None:
    with Broker(tcp=True) as broker, broker.connect() as mq, Observer(broker.url) as observer:
        (broker.store / "checkpoint").unlink()

        def both() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
            ours = [(each.name, each.verdict) for each in mq.admin.health().checks if each.name != "control"]
            found = [each for each in examine(observer, Thresholds()).findings if each.check not in HOST_ONLY]
            return ours, [(each.name, each.verdict) for each in found if each.check != "group"]

        def agree() -> bool:
            ours, theirs = both()
            return ours == theirs and ("store files", "WARNING") in ours

        eventually(agree, lambda: str(both()))
        with shmq.connect(f"rocketmq://{broker.name_server}") as remote:
            assert ("store files of", "WARNING") in [
                (each.name.rpartition(" ")[0], each.verdict) for each in remote.admin.health().checks
            ]
