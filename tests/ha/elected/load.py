"""Producers and consumers of every kind that go on while brokers of a group die.

over TCP         plain, ordered, delayed and transactional senders, batches and requests; what answers requests, over
                 one connection all the time; members of groups, and one that pops
each host        the same senders but batches, whether it leads or follows; a member of a group of that host
leader's host    a member of a group, which moves to the leader
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence, Set
from typing import Any, Self

import shmq
from shmq import Connection
from shmq.protocol.system_topics.transaction import GIVEN_UP_TOPIC
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import Group
from tests.ha.elected.receivers import Receiver, member_of, popper_of
from tests.ha.elected.senders import (
    SHOP,
    Acknowledged,
    AskingSender,
    BatchSender,
    Sender,
    TransactionalSender,
    answer_checks,
    is_committed,
    reply_to,
)
from tests.ha.elected.stock import stock_receiver, stock_sender

TOPIC, DELAYED, ASKED = "orders", "reminders", "questions"
DELAY_SECONDS = 1.0
_CHECKS_AGAIN = 5
_INTERVAL_SECONDS = 31.0  # a broker asks how a transaction ended, and asks again
_ANSWER_SECONDS = 20.0


class Load:
    """All of them.

    Attributes:
        stock: senders with the Java clients of the lines `java`.
        wrong_clocks: from when to when a host's wall clock was wrong: a delay was shorter then, or longer.
    """

    def __init__(self, url: str, group: Group, *, java: Sequence[str] = ()) -> None:
        def tcp() -> Connection:
            return shmq.connect(url, timeout=3.0)

        def local(broker: Broker) -> Callable[[], Connection]:
            return lambda: broker.connect(timeout=3.0)

        self.wrong_clocks: list[tuple[float, float]] = []
        self._group = group
        self._tcp = tcp
        places = [("", tcp), *((str(number), local(broker)) for number, broker in enumerate(group.brokers))]
        self.ordered = [
            Sender(f"ordered{where}", connect, lambda mq, where=where: lambda body: mq.send(
                TOPIC, body, message_group=f"one{where}"
            ))
            for where, connect in places
        ]  # fmt: skip
        self.delayed = [
            Sender(f"delayed{where}", connect, lambda mq: lambda body: mq.send(DELAYED, body, delay=DELAY_SECONDS))
            for where, connect in places
        ]
        self.asking = [AskingSender(f"asking{where}", connect, ASKED) for where, connect in places]
        self.tcp = [
            Sender("tcp", tcp, lambda mq: lambda body: mq.send(TOPIC, body)),
            self.ordered[0],
            BatchSender("batch", tcp, TOPIC),
        ]
        self.local = [
            Sender(f"local{number}", local(broker), lambda mq: lambda body: mq.send(TOPIC, body))
            for number, broker in enumerate(group.brokers)
        ]
        self.tcp_transactions = TransactionalSender("tcp-transactions", tcp, TOPIC)
        self.local_transactions = [
            TransactionalSender(f"local{number}-transactions", local(broker), TOPIC)
            for number, broker in enumerate(group.brokers)
        ]
        name_server = url.removeprefix("rocketmq://")
        self.stock = [stock_sender(version, name_server, TOPIC) for version in java]
        self.stock_readers = [stock_receiver(version, name_server, TOPIC) for version in java]
        self._here: Broker | None = None
        self.readers = Receiver("readers", tcp, member_of("readers", TOPIC))
        self.poppers = Receiver("poppers", tcp, popper_of("poppers", TOPIC))
        self.local_readers = Receiver(
            "local-readers", self._connect_to_leader, member_of("local-readers", TOPIC), self._leads_here
        )
        self.late = Receiver("late", tcp, member_of("late", DELAYED))
        self.host_readers = [
            Receiver(f"host{number}-readers", local(broker), member_of(f"host{number}-readers", TOPIC))
            for number, broker in enumerate(group.brokers)
        ]

    @property
    def transactions(self) -> list[TransactionalSender]:
        return [self.tcp_transactions, *self.local_transactions]

    @property
    def senders(self) -> list[Sender]:
        ours = [*self.tcp, *self.ordered[1:], *self.local, *self.transactions, *self.delayed, *self.asking]
        return [*ours, *self.stock]

    @property
    def receivers(self) -> list[Receiver]:
        """Those of the topic that all senders but one use."""
        return [self.readers, self.poppers, self.local_readers, *self.stock_readers]

    @property
    def all_receivers(self) -> list[Receiver]:
        """Those, and the groups of single hosts, which need not have received everything."""
        return [*self.receivers, *self.host_readers]

    @property
    def settled(self) -> set[bytes]:
        """Bodies of transactions that were begun, and have to be there in the end."""
        return {body for sender in self.transactions for body in sender.begun if is_committed(body)}

    def stored(self, senders: list[Sender]) -> list[Acknowledged]:
        return [row for sender in senders for row in sender.stored]

    def figures(self, lost: Set[bytes] = frozenset()) -> dict[str, Any]:
        """Return what a run that broke no rule prints of it."""
        return {
            "acknowledged": len(self.stored(self.senders)),
            "transactions": sum(len(sender.begun) for sender in self.transactions),
            "answered": sum(sender.answered for sender in self.asking),
            "lost": sum(row.body in lost for row in self.stored(self.senders)),
            "received": {receiver.name: receiver.times for receiver in self.all_receivers},
        }

    def __enter__(self) -> Self:
        self._answering = self._tcp()
        self._answering.replier(ASKED, group="answering")(lambda message: reply_to(bytes(message.body)))
        self._answering.start()
        for each in (*self.senders, *self.all_receivers, self.late):
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.senders, *self.all_receivers, self.late):
            each.stop()
        self._answering.close()

    def stop_sending(self) -> None:
        for sender in self.senders:
            sender.stop()

    def wait_for_receivers(self, leader: Broker, lost: Set[bytes] = frozenset()) -> None:
        """Everything that was acknowledged, and is not lost, was received, by each group."""
        delayed = {row.body for row in self.stored(self.delayed)}
        self._wait_for(self.late, delayed - lost, _ANSWER_SECONDS * 3)
        sent = {row.body for sender in self.senders if sender not in self.delayed for row in sender.stored}
        for receiver in self.receivers:
            self._wait_for(receiver, sent - lost, _ANSWER_SECONDS * 3)
        self._settle(leader, lost)
        for receiver in self.receivers:
            self._wait_for(receiver, self.settled - lost, _ANSWER_SECONDS * 3)

    def _settle(self, leader: Broker, lost: Set[bytes]) -> None:
        """Let the leader ask how each open transaction ended."""
        with self._tcp() as mq:
            answer_checks(mq)
            mq.producer(group=SHOP).transaction(TOPIC, b"last commit").commit()  # the leader knows whom to ask
            for _ in range(_CHECKS_AGAIN):
                leader.advance(_INTERVAL_SECONDS)
                with contextlib.suppress(AssertionError):
                    self._wait_for(self.readers, self.settled - lost, _ANSWER_SECONDS)
                    return

    def _wait_for(self, receiver: Receiver, bodies: set[bytes], seconds: float) -> None:
        def missing() -> list[bytes]:
            return sorted(bodies - receiver.received.keys())

        eventually(
            lambda: not missing(),
            lambda: (
                f"{receiver.name} lacks {len(missing())} of {len(bodies)} bodies, first {self._traces(missing()[:5])}"
            ),
            seconds,
        )

    def _traces(self, bodies: list[bytes]) -> list[str]:
        """What is known of lacking bodies: where they were stored, who has them, where the groups are there."""
        rows = {row.body: row for sender in self.senders for row in sender.stored}
        offsets: list[shmq.QueueLag] = []
        with contextlib.suppress(shmq.ShmqError), self._tcp() as mq:
            offsets = [lag for each in self.receivers for lag in mq.admin.groups[each.name].offsets]
        found = []
        for body in bodies:
            row, having = rows.get(body), [each.name for each in self.receivers if body in each.received]
            lags = [tuple(lag) for lag in offsets if row is not None and lag.queue_id == row.queue_id]
            found.append(f"{row or body!r} received by {having}, groups {lags}")
        return [*found, *self._given_up(bodies)]

    def _given_up(self, bodies: list[bytes]) -> list[str]:
        """Which of them were rolled back because no answer about them came."""
        found: set[bytes] = set()
        leader = self._group.leader()
        with contextlib.suppress(shmq.ShmqError), leader.connect() as mq, mq.pull_consumer(GIVEN_UP_TOPIC) as pull:
            while messages := pull.poll(max=1000, wait=0.5):
                found.update(bytes(message.body) for message in messages)
        return [f"rolled back after all checks: {len(found)}, of these {sorted(found.intersection(bodies))}"]

    # A member on the leader's host

    def _connect_to_leader(self) -> Connection | None:
        self._here = self._group.newest()
        return None if self._here is None else self._here.connect(timeout=3.0)

    def _leads_here(self) -> bool:
        return self._here is not None and self._here is self._group.newest()
