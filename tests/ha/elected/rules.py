"""The rules of a group of brokers, looked at when the load is over.

every receipt is true       the place it names holds that body, on the last leader
one place, one body         no two receipts name the same place
a transaction ends as said  what was begun and is to be committed is there, once; what was rolled back is not, and
                            no member has received it
what is seen stays          no member on any host, leader or follower, has received what the last leader has not, or at
                            another place: no place was confirmed in two epochs
groups keep their order     the messages of one message group are in one queue, and a member gets them in the order in
                            which they were sent
delayed, never early
hardly anything twice       a sender's message is there again only where a connection ended with the request under way
a reply is its request's
offsets stay                no switch sets a group's offset back behind what every broker in sync had of it

Under asynchronous replication the rules hold but for what only the lost masters had: bodies are `lost` of which those
that came after them have no record, and `moved` where they lack at least one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import shmq
from shmq.store.config import OWN_GROUPS
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import Group
from tests.ha.elected.load import DELAY_SECONDS, DELAYED, TOPIC, Load
from tests.ha.elected.receivers import Place, Receiver
from tests.ha.elected.senders import Acknowledged, is_committed, outcome_of
from tests.shm.looking import looking

_CONNECTIONS_OF_A_FAULT = 2  # that it ends for one sender: the bridges of both hosts start again
_NOTHING: Set[bytes] = frozenset()
Offsets = dict[tuple[str, str, int], int]


def check_all(
    leader: Broker, load: Load, faults: int, lost: Set[bytes] = _NOTHING, moved: Set[bytes] = _NOTHING
) -> None:
    """Raises AssertionError.

    Args:
        faults: how often hosts or links failed, or changed their roles.
    """
    found = messages_of(leader, TOPIC)
    check_copies([*found.values(), *messages_of(leader, DELAYED).values()], faults * _CONNECTIONS_OF_A_FAULT)
    _check_receipts(found, load, moved)
    _check_transactions(found, load, lost)
    check_seen(moved.union(found.values()), load.all_receivers)
    check_places(found, load.all_receivers, moved)
    for sender in load.ordered:
        check_queue(sender.stored)
    for asking in load.asking:
        assert not asking.wrong, f"{asking.name} got the answer to another request: {asking.wrong[:3]}"
    check_order([receiver for receiver in load.all_receivers if receiver is not load.poppers])
    for row in load.stored(load.delayed):
        if row.body in lost and row.body not in load.late.received:
            continue
        at = load.late.received[row.body]
        is_early = at - row.sent_at < DELAY_SECONDS - 0.05
        assert not is_early or any(began < at and row.sent_at < ended for began, ended in load.wrong_clocks), row


def messages_of(leader: Broker, topic: str) -> dict[Place, bytes]:
    """Return all that a topic holds."""
    found: dict[Place, bytes] = {}
    with leader.connect() as mq, mq.pull_consumer(topic) as pull:
        for queue in pull.queues():
            pull.seek(queue, "begin")
        while messages := pull.poll(max=1000, wait=0.5):
            found.update({(message.queue_id, message.offset): bytes(message.body) for message in messages})
    return found


def _check_receipts(found: dict[Place, bytes], load: Load, moved: Set[bytes]) -> None:
    receipts: dict[Place, bytes] = {}
    for row in load.stored([*load.tcp, *load.ordered[1:], *load.local, *load.transactions, *load.stock]):
        if row.body in moved:
            continue
        place = row.queue_id, row.offset
        assert receipts.setdefault(place, row.body) == row.body, (place, row, receipts[place])
        assert found.get(place) == row.body, (row, found.get(place))


def _check_transactions(found: dict[Place, bytes], load: Load, lost: Set[bytes]) -> None:
    counts = Counter(body for body in found.values() if outcome_of(body))
    more = {body: count for body, count in counts.items() if count > 1}
    assert not more, f"committed more than once: {more}"
    missing = sorted(load.settled - counts.keys() - lost)
    assert not missing, f"{len(missing)} were to be committed: {missing[:5]}"
    seen = {*counts, *(body for receiver in load.all_receivers for body in receiver.received if outcome_of(body))}
    wrong = sorted(body for body in seen if not is_committed(body))
    assert not wrong, f"{len(wrong)} were rolled back: {wrong[:5]}"


def check_seen(stored: set[bytes], receivers: Iterable[Receiver]) -> None:
    """Raises AssertionError where a receiver got what is not stored, or a group got nothing at all."""
    for receiver in receivers:
        more = sorted(receiver.received.keys() - stored)
        assert not more, f"{receiver.name} received {len(more)} that the last leader has not: {more[:5]}"
        assert receiver.received, f"{receiver.name} received nothing"


def check_places(stored: Mapping[Place, bytes], receivers: Iterable[Receiver], moved: Set[bytes] = _NOTHING) -> None:
    """Raises AssertionError where a receiver got another body from a place than the last leader has there."""
    for receiver in receivers:
        changed = {place: bodies for place, bodies in receiver.changed.items() if len(bodies - moved) > 1}
        assert not changed, f"{receiver.name}: two bodies of one place: {changed}"
        other = [
            (place, body, stored.get(place))
            for place, body in receiver.places.items()
            if stored.get(place) != body and body not in moved
        ]
        assert not other, f"{receiver.name}: {len(other)} places hold something else now: {other[:5]}"


def check_copies(stored: Iterable[bytes], most: int) -> None:
    """Raises AssertionError where more than so many messages of one sender are there again."""
    again: dict[bytes, list[bytes]] = {}
    for body, count in Counter(stored).items():
        if count > 1:
            again.setdefault(body.rpartition(b"-")[0], []).append(body)
    more = {name.decode(): (len(bodies), sorted(bodies)[:5]) for name, bodies in again.items() if len(bodies) > most}
    assert not more, f"more than {most} messages of one sender are there again: {more}"


def check_queue(stored: Sequence[Acknowledged]) -> None:
    """Raises AssertionError where messages of one message group went to more than one queue."""
    moves = [(one, other) for one, other in itertools.pairwise(stored) if one.queue_id != other.queue_id]
    assert not moves, f"one message group went to another queue {len(moves)} times: {moves[:3]}"


def check_order(receivers: Iterable[Receiver]) -> None:
    """Raises AssertionError where messages of one message group came in another order than they were sent."""
    for receiver in receivers:
        for sender in {arrival.sender for arrival in receiver.arrivals}:
            arrivals = [arrival for arrival in receiver.arrivals if arrival.sender == sender]
            first: dict[int, int] = {}  # where each number came for the first time
            for index, arrival in enumerate(arrivals):
                first.setdefault(arrival.number, index)
            wrong = [pair for pair in itertools.pairwise(first) if pair[0] > pair[1]]
            near = [arrivals[max(0, first[pair[1]] - 4) : first[pair[1]] + 2] for pair in wrong[:3]]
            assert not wrong, f"{receiver.name}: {len(wrong)} came too early: {wrong[:5]}; around them {near}"


class Progress:
    """What every broker has of the groups' offsets; a switch may set none of it back."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._had: Offsets = {}

    def note(self, leader: Broker) -> None:
        """Wait until each broker has what the leader has now."""
        had = offsets_of(leader)
        for broker in self._group.brokers:
            eventually(lambda broker=broker: not behind(broker, had), lambda broker=broker: str(behind(broker, had)))
        self._had = had

    def check(self, leader: Broker) -> None:
        """A new leader has it: at once, because members raise an offset again when they read again."""
        assert not behind(leader, self._had), (leader, behind(leader, self._had))


def behind(broker: Broker, had: Offsets) -> dict[tuple[str, str, int], tuple[int, int]]:
    """What a broker has, and should have, where it has less."""
    has = offsets_of(broker)
    return {key: (has.get(key, -1), offset) for key, offset in had.items() if has.get(key, -1) < offset}


def offsets_of(broker: Broker) -> Offsets:
    """The offsets of groups of users, by group, topic and queue; its segments may be made anew just now."""

    def look() -> Offsets | None:
        with contextlib.suppress(shmq.SegmentError), looking(broker) as store:
            groups = {index: name for index, name in store.groups() if name not in OWN_GROUPS}
            places = {
                queue: (topic["name"], queue_id)
                for topic in store.topics()
                for queue_id, queue in enumerate(topic["queues"])
            }
            return {
                (groups[entry.group], *places[entry.queue]): entry.committed
                for entry in store.offsets()
                if entry.group in groups and entry.queue in places
            }
        return None

    found: Offsets = eventually(lambda: (offsets := look()) is not None and (offsets,), str(broker))[0]
    return found
