"""`shmq cluster`: status, members, promote, demote. A broker and the hosts that it replicates to or from.

What status shows is what the broker's replication process last wrote down (`shmq.shm.links`); no other host is asked.
"""

from __future__ import annotations

from typing import Any

from shmq.errors import BrokerNotRunning
from shmq.figures.observer import Observer
from shmq.figures.quantity import age_text, count_text, size_text
from shmq.figures.replication import election_text
from shmq.figures.snapshot import LostReplica, Master, Replica, Snapshot, plain
from shmq.shm.links import FOLLOWS, LEADS
from shmq.tools.cluster.demote_command import demote
from shmq.tools.cluster.members_command import members
from shmq.tools.cluster.promote_command import promote
from shmq.tools.command import Call, Group, pass_call
from shmq.tools.terminal.output import Column

cluster = Group(
    "cluster", help="A broker's other hosts, and which of them is the master: status, members, promote, demote."
)
cluster.add_command(members)
cluster.add_command(promote)
cluster.add_command(demote)

_NOTHING = "–"
_COLUMNS = [
    Column("host"),
    Column("kind"),
    Column("state"),
    Column("for", right=True),
    Column("has the log to", right=True),
    Column("behind", right=True),
    Column("", right=True),
    Column("why"),
]


@cluster.command()
@pass_call
def status(call: Call) -> None:
    """Show this broker's role, its slaves or its master, and how far behind each is."""
    call.refuse_remote(
        "a broker's other hosts are looked at on its own host", hint="shmq cluster status -u shmq://NAME"
    )
    with Observer(call.url) as observer:
        snapshot = observer.snapshot("quick")
    document = _document(snapshot)
    if call.terminal.structured:
        call.terminal.document(document, rows=document["replicas"])
        return
    broker = snapshot.broker
    end = count_text(document["log_end"]) if document["log_end"] is not None else _NOTHING
    call.terminal.say(f"{broker.name} {_standing(document)}, its log ends at {end}")
    if snapshot.replication is not None and snapshot.replication.election is not None:
        call.terminal.say(election_text(snapshot.replication.election))
    rows = _rows(snapshot)
    if rows:
        call.terminal.table(_COLUMNS, rows)
    elif document["role"] != "slave":
        call.terminal.say("no slave is connected, and none was")


def _document(snapshot: Snapshot) -> dict[str, Any]:
    broker, told = snapshot.broker, snapshot.replication
    if not broker.served:
        raise BrokerNotRunning(f'broker "{broker.name}" is not served on this host', hint="shmq health says why")
    return {
        "broker": broker.name,
        "role": told.role if told else "master",
        "at_ms": int(snapshot.at * 1000),
        "epoch": told.epoch if told else 0,
        "standing": told.standing if told else LEADS,
        "leader": told.leader if told else "",
        "standing_age": told.standing_age if told else None,
        "age": told.age if told else None,
        "log_end": snapshot.log.end if snapshot.log else None,
        "replicas": plain(told.replicas) if told else [],
        "gone": plain(told.gone) if told else [],
        "refused": plain(told.refused) if told else [],
        "master": plain(told.master) if told else None,
        "election": plain(told.election) if told else None,
    }


def _standing(document: dict[str, Any]) -> str:
    role, epoch, leader = document["role"], document["epoch"], document["leader"]
    since = f", for {age_text(document['standing_age'])}" if document["standing_age"] is not None else ""
    if document["standing"] == LEADS:
        return f"is a {role} and leads in epoch {epoch}{since}"
    if document["standing"] == FOLLOWS:
        return f"is a {role} of {leader or 'no master yet'} in epoch {epoch}{since}"
    return f"leads no more since epoch {epoch}{since} ({leader or 'it is not known here who'} leads)"


def _rows(snapshot: Snapshot) -> list[list[str]]:
    told = snapshot.replication
    if told is None:
        return []
    rows = [] if told.master is None else [_master(told.master, snapshot)]
    rows += [_replica(row) for row in told.replicas]
    rows += [_lost(row, "gone") for row in told.gone]
    return rows + [_lost(row, "refused") for row in told.refused]


def _replica(row: Replica) -> list[str]:
    here = _NOTHING if row.acknowledged is None else count_text(row.acknowledged)
    return [row.address, row.kind or _NOTHING, row.state, age_text(row.age), here, *_behind(row), ""]


def _master(row: Master, snapshot: Snapshot) -> list[str]:
    since = _NOTHING if row.age is None else age_text(row.age)
    here = _NOTHING if snapshot.log is None else count_text(snapshot.log.end)
    error = row.error if row.age is None or row.error_age is None else ""
    return [f"master {row.address}", row.kind or _NOTHING, row.state, since, here, *_behind(row), error]


def _lost(row: LostReplica, state: str) -> list[str]:
    return [row.address, _NOTHING, state, age_text(row.age), _NOTHING, _NOTHING, _NOTHING, row.reason]


def _behind(row: Replica | Master) -> list[str]:
    if row.lag_bytes is None or row.lag_ms is None:
        return [_NOTHING, _NOTHING]
    return [size_text(row.lag_bytes), age_text(row.lag_ms / 1000)]
