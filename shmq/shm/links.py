"""links.json: what a broker's replication process knows of the other hosts, for monitoring.

    {"at_ms": …, "role": "sync-master", "epoch": 2, "standing": "leads", "leader": "",
     "standing_since_ms": …, "replicas": [{…}], "gone": [{…}], "refused": [{…}], "master": null, "election": null}
    {"at_ms": …, "role": "slave", "epoch": 2, "standing": "follows", "leader": "10.0.0.4:10911",
     "standing_since_ms": …, "replicas": [], "gone": [], "refused": [], "master": {…}}

The process replaces the file every half a second while it has a role to play; health, top, doctor, metrics and
`shmq cluster status` read it and call no daemon.

    standing                      this broker …
    leads                         takes messages, as the master of its epoch
    follows                       takes its master's; `leader` is where that takes messages
    fenced                        takes none: another one may be the master, `leader` if it is known

`standing_since_ms` is when the standing or the epoch changed for the last time, or when this process began to look.

    state of a replica            it …
    connecting                    has not said yet where its log ends
    catching up                   lacks what the master stored more than half a second ago
    asynchronous                  has caught up; no send waits for it
    in sync                       has on its disk all that a sync-master acknowledged

    state of a slave's master     the slave …
    connecting                    tries for the first time, for some seconds, and knows nothing yet
    catching up, up to date       follows
    stuck                         is connected and cannot store what it is sent
    lost                          is not connected; `error` says why, `cure` what to do

A slave whose log is none of its master's tries again all the same: it is connected, and lost, in turn. Meanwhile, and
until it follows, `is_refused` says so: it takes nothing of this master before an operator has done what `cure` says.

Times are milliseconds of CLOCK_MONOTONIC, which all processes of a host share.

Rules: (1) the text comes from a file, so it is checked when it is read; what is not as it should be is as good as no
file; (2) fields are only added, with a default.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shmq.plain_file import read_plain
from shmq.shm.descriptors import above_standard
from shmq.shm.replacing import replace_text

CONNECTING, CATCHING_UP, ASYNCHRONOUS, IN_SYNC = "connecting", "catching up", "asynchronous", "in sync"
LEADS, FOLLOWS, FENCED = "leads", "follows", "fenced"
UP_TO_DATE, STUCK, LOST = "up to date", "stuck", "lost"
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
    store: str = ""  # the identity of its store; of a stock slave "", which does not say


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
    is_refused: bool = False  # by this slave, for good


class ElectionState(NamedTuple):
    """A broker's knowledge of the election of its master.

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


Row = TypeVar("Row", ReplicaLink, LostLink, MasterLink, ElectionState)


@above_standard
def read_links(path: Path) -> Links | None:
    """Return what links.json says, None when it is not there or says nothing usable."""
    try:
        data: Any = json.loads(read_plain(path, _FILE_BYTES_MAX))
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
    """Replace links.json at once; raises StoreError."""
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
