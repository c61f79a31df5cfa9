"""`shmq cluster members`: the hosts that have a broker's log, and which of them may become its master.

A host sees itself and those it is linked with: the master all that are connected, a slave its master. Which stores can
be elected, connected or not, each host of an elected broker knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

from shmq.errors import BrokerNotRunning
from shmq.figures.observer import Observer
from shmq.figures.quantity import count_text, size_text
from shmq.figures.snapshot import Replication, Snapshot, plain
from shmq.shm.links import FENCED, FOLLOWS, IN_SYNC, LEADS
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.terminal.output import Column

_NOTHING = "–"
_SHOWN = 8  # of a store's identity
_COLUMNS = [
    Column("store"),
    Column("host"),
    Column("part"),
    Column("in sync"),
    Column("has the log to", right=True),
    Column("behind", right=True),
]


class Member(NamedTuple):
    """One host of a broker.

    Attributes:
        store: the identity of its store, "" where it is not known.
        host: where it is connected from, or where it serves; "" of this host, and of one that is not connected.
        part: leads, follows or fenced; "" of one that is not connected.
        in_sync: whether it has all that was acknowledged; None where no send waits for another host.
    """

    store: str
    host: str
    part: str
    is_here: bool
    in_sync: bool | None
    log_end: int | None = None
    lag_bytes: int | None = None


@click.command(cls=Command)
@pass_call
def members(call: Call) -> None:
    """Show the hosts that have this broker's log, and which of them have all that was acknowledged.

    Only those can become the master without a loss; where the master is elected, no other one is elected. The master
    knows the slaves that are connected, a slave its master.
    """
    call.refuse_remote("a broker's hosts are looked at on one of them", hint="shmq cluster members -u shmq://NAME")
    with Observer(call.url) as observer:
        snapshot = observer.snapshot("quick")
    broker = snapshot.broker
    if not broker.served:
        raise BrokerNotRunning(f'broker "{broker.name}" is not served on this host', hint="shmq health says why")
    rows = list(members_of(snapshot))
    if call.terminal.structured:
        document = {"broker": broker.name, "members": plain(tuple(rows))}
        call.terminal.document(document, rows=document["members"])
        return
    call.terminal.table(_COLUMNS, [_row(member) for member in rows])


def members_of(snapshot: Snapshot) -> Iterator[Member]:
    """Return the hosts of a broker, this one first."""
    told = snapshot.replication or Replication("master", 0.0, (), (), (), None)
    election = told.election
    waits = told.role == "sync-master" or any(row.state == IN_SYNC for row in told.replicas)
    electable = election.in_sync if election is not None else ()
    own = election.store if election is not None else ""
    end = snapshot.log.end if snapshot.log is not None else None

    def is_in_sync(store: str, state: str = "") -> bool | None:
        if election is not None:
            return store in electable
        return state == IN_SYNC if waits else None

    here = IN_SYNC if told.standing == LEADS else ""
    yield Member(own, "", told.standing, True, is_in_sync(own, here), end)
    seen = {own}
    if told.standing != LEADS and (told.leader or (election is not None and election.leader)):
        leader = election.leader if election is not None else ""
        master_end = (
            end + told.master.lag_bytes
            if end is not None and told.master and told.master.lag_bytes is not None
            else None
        )
        yield Member(leader, told.leader, LEADS, False, is_in_sync(leader, IN_SYNC), master_end)
        seen.add(leader)
    for row in told.replicas:
        yield Member(
            row.store, row.address, FOLLOWS, False, is_in_sync(row.store, row.state), row.acknowledged, row.lag_bytes
        )
        seen.add(row.store)
    yield from (Member(store, "", "", False, True) for store in electable if store not in seen)


def _row(member: Member) -> list[str]:
    words = {None: _NOTHING, True: "yes", False: "no"}
    part = {LEADS: "leads", FOLLOWS: "follows", FENCED: "fenced"}.get(member.part, "not seen from here")
    return [
        member.store[:_SHOWN] or _NOTHING,
        "this host" if member.is_here else member.host or _NOTHING,
        part,
        words[member.in_sync],
        _NOTHING if member.log_end is None else count_text(member.log_end),
        _NOTHING if member.lag_bytes is None else size_text(member.lag_bytes),
    ]
