"""links.json: what a broker's replication process knows of the other hosts, for whoever looks at the broker.

    {"at_ms": …, "role": "sync-master", "epoch": 2, "standing": "leads", "leader": "",
     "standing_since_ms": …, "replicas": [{…}], "gone": [{…}], "refused": [{…}], "master": null, "election": null}
    {"at_ms": …, "role": "slave", "epoch": 2, "standing": "follows", "leader": "10.0.0.4:10911",
     "standing_since_ms": …, "replicas": [], "gone": [], "refused": [], "master": {…}}

The process replaces the file every half a second while it has a role to play; health, top, doctor, metrics and
`shmq cluster status` read it and ask nobody.

    standing                      this broker …
    leads                         takes messages, as the master of its epoch
    follows                       takes its master's; `leader` is where that takes messages
    fenced                        takes none: another one may be the master, `leader` if it is known

`standing_since_ms` is when the standing or the epoch changed for the last time, or when this process began to look.

    state of a replica            it …
    connecting                    has not said yet where its log ends
    catching up                   lacks what the master stored more than half a second ago
    asynchronous                  has caught up, and nobody waits for it
    in sync                       has on its disk all that a sync-master acknowledged

    state of a slave's master     the slave …
    connecting                    tries for the first time, for some seconds, and knows nothing yet
    catching up, up to date       follows
    stuck                         is connected and cannot store what it is sent
    lost                          is not connected; `error` says why, `cure` what to do

Times are milliseconds of CLOCK_MONOTONIC, which all processes of a host share.

Rules: (1) the text comes from a file, so it is checked when it is read; what is not as it should be is as good as no
file; (2) fields are only added, with a default.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shmq.shm.descriptors import above_standard
from shmq.shm.replacing import replace_text

CONNECTING, CATCHING_UP, ASYNCHRONOUS, IN_SYNC = "connecting", "catching up", "asynchronous", "in sync"
LEADS, FOLLOWS, FENCED = "leads", "follows", "fenced"
UP_TO_DATE, STUCK, LOST = "up to date", "stuck", "lost"
SILENT_MS_MAX = 5_000  # a file that is older was written by a process that is stopped or dead
ANSWER_SECONDS = 5.0  # a connection that is made and says nothing
_HEARD_SECONDS = 8.0  # each end speaks every 5 s at least
_LAG_SECONDS = 10.0
_FAILED_SECONDS = 15.0  # what fails is tried again, and told again, more often
GONE_SECONDS_MAX, REFUSED_SECONDS_MAX = 24 * 3600.0, 600.0  # so long that is told
_FILE_BYTES_MAX = 1 << 20


class ReplicaLink(NamedTuple):
    """One slave that is connected."""

    address: str
    kind: str  # "shmq", "stock", or "" before it spoke
    state: str
    since_ms: int
    acknowledged: int | None = None  # log position; None before it spoke
    flushed: int | None = None  # on its disk; None of a stock slave, which does not say
    lag_bytes: int | None = None
    lag_ms: int | None = None


class LostLink(NamedTuple):
    """A slave that was connected, or was refused; one row for each host, the last reason counts."""

    address: str
    reason: str
    cure: str
    at_ms: int
    times: int = 1


class MasterLink(NamedTuple):
    """A slave's master; what it lags behind is as of when the master was heard last."""

    address: str
    state: str
    kind: str = ""  # "shmq", "stock", or "" before it spoke
    since_ms: int | None = None  # following since; None while it does not
    heard_ms: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    error: str = ""  # the last one, kept after it is over
    cure: str = ""
    error_ms: int | None = None


class ElectionState(NamedTuple):
    """What a broker knows of the election of its master.

    Attributes:
        role: waiting, following, campaigning, leading or finished.
        leader: the leader's store, "" where there is none; `leader_address` its addresses.
        in_sync: stores that can be elected, with blanks between them; `store` is this one's.
        kept_ms_ago: of a leader, since its lease was renewed for the last time.
        reason: why it is fenced, or waits; `why`: how the epoch began.
    """

    role: str
    store: str
    leader: str = ""
    leader_address: str = ""
    in_sync: str = ""
    kept_ms_ago: int | None = None
    reason: str = ""
    why: str = ""


class Links(NamedTuple):
    """All of them."""

    at_ms: int
    role: str
    replicas: tuple[ReplicaLink, ...] = ()
    gone: tuple[LostLink, ...] = ()
    refused: tuple[LostLink, ...] = ()
    master: MasterLink | None = None
    epoch: int = 0
    standing: str = LEADS
    leader: str = ""
    election: ElectionState | None = None
    standing_since_ms: int | None = None


class LinkFault(NamedTuple):
    """Why a link is not well, for everybody who judges it, and what can be done."""

    is_critical: bool
    why: str
    do: str


SLOW = LinkFault(
    False,
    "the network, or the slower of the two disks, takes less than the master stores; or that host takes nothing",
    "see shmq health on both hosts, and the network between; what is stored on the master alone is lost with it",
)


def fault_of_master(
    state: str,
    *,
    age: float | None,
    heard_age: float | None,
    lag_seconds: float,
    error: str,
    cure: str,
    error_age: float | None,
) -> LinkFault | None:
    """Judge a slave's link to its master; None: it is well. Seconds, and the fields of MasterLink."""
    do = cure or "look for ha.master_lost in this broker's log"
    if state in (LOST, STUCK):
        return LinkFault(True, error, do)
    if age is not None and heard_age is not None and heard_age >= _HEARD_SECONDS:
        why = f"the connection stands, and nothing has come over it for {heard_age:.0f} s: this slave copies nothing"
        return LinkFault(False, why, "look at the replication process on the master's host (shmq top), and the network")
    if age is not None and error_age is not None and error_age < min(age, _FAILED_SECONDS):
        return LinkFault(False, error, do)
    return SLOW if lag_seconds >= _LAG_SECONDS else None


def fault_of_replica(state: str, *, age: float, lag_seconds: float) -> LinkFault | None:
    """Judge a master's link to a slave that is connected; None: it is well. Seconds, and the fields of ReplicaLink."""
    if state == CONNECTING:
        why = "it is no slave, or it is stopped; nothing is shipped to it, and after 20 s it is given up"
        return LinkFault(False, why, "look at that host") if age >= ANSWER_SECONDS else None
    return SLOW if lag_seconds >= _LAG_SECONDS else None


def fault_of_lost(*, is_refused: bool, age: float, reason: str, cure: str) -> LinkFault | None:
    """Judge a slave that has gone or was refused; None: that is long ago. The fields of LostLink."""
    if age > (REFUSED_SECONDS_MAX if is_refused else GONE_SECONDS_MAX):
        return None
    do = (
        "look at that host" if is_refused else "look at the slave's log for ha.master_lost; it connects again by itself"
    )
    return LinkFault(False, reason, cure or do)


Row = TypeVar("Row", ReplicaLink, LostLink, MasterLink, ElectionState)


@above_standard
def read_links(path: Path) -> Links | None:
    """Return what links.json says, None when it is not there or says nothing usable."""
    try:
        with path.open("rb") as file:
            data: Any = json.loads(file.read(_FILE_BYTES_MAX))
        master = data["master"]
        links = Links(
            at_ms=data["at_ms"],
            role=data["role"],
            replicas=tuple(_row(ReplicaLink, row) for row in data["replicas"]),
            gone=tuple(_row(LostLink, row) for row in data["gone"]),
            refused=tuple(_row(LostLink, row) for row in data["refused"]),
            master=None if master is None else _row(MasterLink, master),
            election=None if data.get("election") is None else _row(ElectionState, data["election"]),
            **{name: data[name] for name in ("epoch", "standing", "leader", "standing_since_ms") if name in data},
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    texts = (links.role, links.standing, links.leader)
    numbers = (links.at_ms, links.epoch, links.standing_since_ms or 0)
    is_usable = all(isinstance(text, str) for text in texts) and all(isinstance(number, int) for number in numbers)
    return links if is_usable else None


def write_links(path: Path, links: Links, *, mode: int, gid: int) -> None:
    """Replace links.json at once; raises OSError."""
    document = links._asdict()
    for name in ("replicas", "gone", "refused"):
        document[name] = [row._asdict() for row in document[name]]
    document["master"] = None if links.master is None else links.master._asdict()
    document["election"] = None if links.election is None else links.election._asdict()
    replace_text(path, json.dumps(document), mode=mode, gid=gid)


def _row(kind: type[Row], data: Mapping[str, Any]) -> Row:
    row = kind(**{name: data[name] for name in kind._fields if name in data})
    for name, expected in kind.__annotations__.items():
        if not isinstance(getattr(row, name), expected):
            raise ValueError(f"{name} of {kind.__name__} is {getattr(row, name)!r}")
    return row
