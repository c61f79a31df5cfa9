"""The decisions of a send over TCP: which queue is next, and what follows from an answer or its absence.

Routes, codes and `now` go in, queues and verdicts come out; nothing here waits or sends.

    message_group   the queue of its hash, whatever happened before and whether it has a master: order outweighs speed
    queue_id        exactly that one, too
    neither         round robin over the writable queues; not on the broker that just failed; not on a slow one

    0, 11                        stored
    10, 12                       stored, but not durable in time       SendTimeout
    1 2 14 16 17 204 205 1500    not stored by this broker             another one, twice at most, then the error
    no connection                not stored                            the same
    no answer, or 14 with        not known to be stored, or not known  the same: it may then be stored twice, and the
    `maybe_stored`               to be at the next master              error of a later try says `maybe_stored`
    anything else                                                      the error

    not stored, as the broker's master is gone, or it leads no more, and another of its hosts may become the master;
    or as its segments are given up
                                 waits for it, within the timeout of the send

    answered after   550 ms   1 s    2 s     3 s     15 s, or failed (counts as 30 s)
    kept away for    30 s     60 s   120 s   180 s   600 s             RocketMQ's table

Invariants:
    1. There are three tries in all, and none after the deadline; a oneway send is tried once. Tries that have stored
       nothing because there was no master do not count.
    2. The queue of a message group is the one a local producer takes, and Java's SelectMessageQueueByHash.
    3. When every broker is to be avoided, the one whose time is over first is taken: avoiding never stops a send.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Final

from shmq import errors
from shmq.client.keywords import late, queue_in_order
from shmq.client.refusals import may_be_taken_elsewhere
from shmq.client.wire_tcp.route import Route
from shmq.errors import ConnectError, RemoteError, RequestTimeout, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of

RETRIES: Final = 2
MASTER_PAUSE_SECONDS: Final = 0.1
"""Between two looks for a master that a broker does not have."""
_SYSTEM_BUSY: Final = Response.SYSTEM_BUSY
_GO_AWAY: Final = 1500
RETRY_CODES: Final = frozenset((1, _SYSTEM_BUSY, 14, 16, 17, 204, 205, _GO_AWAY))
_STORED: Final = frozenset((Response.SUCCESS, Response.SLAVE_NOT_AVAILABLE))
_STORED_LATE: Final = frozenset((Response.FLUSH_DISK_TIMEOUT, Response.FLUSH_SLAVE_TIMEOUT))

_KINDS: Final[dict[int, tuple[type[ShmqError], str]]] = {
    Response.SYSTEM_BUSY: (errors.BrokerBusy, "send slower, or raise the timeout; the broker says what is busy"),
    Response.MESSAGE_ILLEGAL: (errors.MessageTooLarge, "make the body or the properties shorter"),
    Response.SERVICE_NOT_AVAILABLE: (errors.ReadOnlyStore, "see the broker's disk, and its log"),
    Response.NO_PERMISSION: (errors.PermissionDenied, "see the topic's perm, the broker's perm, and access_key="),
    Response.TOPIC_NOT_EXIST: (errors.TopicNotFound, "create it with: shmq topic create"),
    Response.FLOW_CONTROL: (errors.FlowControl, "send slower"),
}
FAILED_COUNTS_AS: Final = 30.0
_AVOIDED_AFTER: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))


# ---- what an answer means --------------------------------------------------------------------------------------------


_TIMER_LIMIT = re.compile(r"timer message illegal, .*max delay (\d+)ms")  # in every broker's words


def send_error(reply: Command) -> ShmqError | None:
    """Return the error an answer to a send stands for; None when the message is stored."""
    if reply.code in _STORED:
        return None
    remark = reply.remark or f"code {reply.code}"
    if (limit := _TIMER_LIMIT.match(remark)) is not None:
        return late(int(limit[1]))
    if reply.code in _STORED_LATE:
        stored = errors.SendTimeout(f"the message is stored, but was not safe in time: {remark}", hint="do not resend")
        stored.code = reply.code
        return stored
    made = error_of(reply)
    kind = _KINDS.get(reply.code)
    if kind is None or not isinstance(made, RemoteError):
        return made
    error = kind[0](remark, hint=kind[1])
    error.code = reply.code
    return error


class Attempts:
    """The tries of one send.

    Args:
        waits: for a master where there is none: not where the broker has to know the sender before the send.
    """

    def __init__(self, deadline: float, *, retries: int = RETRIES, waits: bool = True) -> None:
        self.deadline = deadline
        self.left = retries
        self.waits = waits
        self.avoid: str | None = None

    def may_retry(self, error: ShmqError, broker_name: str, now: float) -> bool:
        """Say whether to try another broker after this error, and remember which one to avoid."""
        self.avoid = broker_name
        if self.left <= 0 or now >= self.deadline:
            return False
        if isinstance(error, errors.SendTimeout):
            return False
        if not isinstance(error, (RequestTimeout, ConnectError)) and error.code not in RETRY_CODES:
            return False
        if isinstance(error, ConnectError) and not error.retryable and error.code not in RETRY_CODES:
            return False
        self.left -= 1
        return True


def waits_for_master(error: ShmqError, *, has_route: bool) -> bool:
    """Whether a try that failed so has stored nothing, and the broker's next master may store it.

    Args:
        has_route: whether the topic has a route; brokers leave it for a moment when they change their role.
    """
    if isinstance(error, errors.TopicNotFound):
        return not has_route
    return may_be_taken_elsewhere(error)


def begins_anew(error: ShmqError) -> bool:
    """Whether a broker that lives has said that its segments are given up: it takes messages soon, or its next master.

    A connection that was opened in the middle of a switch may not know yet that the broker has other hosts.
    """
    return isinstance(error, errors.BrokerNotRunning) and error.code == Response.SERVICE_NOT_AVAILABLE


# ---- which queue is next ---------------------------------------------------------------------------------------------


def avoid_seconds(latency: float) -> float:
    """Return how long a broker is avoided that took `latency` seconds."""
    return next((avoided for limit, avoided in _AVOIDED_AFTER if latency >= limit), 0.0)


class Latencies:
    """Recent answer times of brokers: a mean in which an answer weighs a quarter."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def report(self, broker_name: str, latency: float, *, failed: bool = False) -> None:
        """Note how long a send to a broker took."""
        seconds = FAILED_COUNTS_AS if failed else latency
        mean = self._means.get(broker_name, seconds)
        self._means[broker_name] = mean + (seconds - mean) / 4

    def fastest(self, broker_names: Iterable[str]) -> str | None:
        """Return the broker with the lowest mean, one that was never asked before all others; None if none was."""
        names = sorted(broker_names)
        if not any(name in self._means for name in names):
            return None
        return min(names, key=lambda name: self._means.get(name, 0.0))


class FaultTable:
    """Until when which broker is avoided; times are seconds of any one clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def report(self, broker_name: str, latency: float, now: float, *, failed: bool = False) -> None:
        """Note how a send to a broker went."""
        avoided = avoid_seconds(FAILED_COUNTS_AS if failed else latency)
        if avoided:
            self._until[broker_name] = now + avoided
        elif not failed:
            self._until.pop(broker_name, None)

    def is_available(self, broker_name: str, now: float) -> bool:
        """Whether nothing speaks against this broker."""
        return self._until.get(broker_name, now) <= now

    def least_bad(self, broker_names: Iterable[str]) -> str | None:
        """Return the broker that will be available first; None when none is given."""
        return min(broker_names, key=lambda name: self._until.get(name, 0.0), default=None)


class QueueChoice:
    """Chooses the next queue, for all sends of one connection; topics take turns of their own."""

    def __init__(self, faults: FaultTable | None) -> None:
        self.faults = faults
        self.latencies = Latencies()
        self._turns: dict[str, itertools.count[int]] = {}

    def select(self, route: Route, now: float, *, avoid: str | None = None) -> MessageQueue:
        """Return the next queue; `avoid` names the broker that failed a moment ago. The route has a writable queue."""
        queues = route.writable
        turn = self._turn(route.topic)
        order = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
        others = [queue for queue in order if queue.brokerName != avoid] or order
        if self.faults is None:
            return others[0]
        for queue in others:
            if self.faults.is_available(queue.brokerName, now):
                return queue
        best = self.faults.least_bad({queue.brokerName for queue in others})
        return next(queue for queue in others if queue.brokerName == best)

    def report(self, broker_name: str, latency: float, now: float, *, failed: bool) -> None:
        """Note how a send to a broker went."""
        self.latencies.report(broker_name, latency, failed=failed)
        if self.faults is not None:
            self.faults.report(broker_name, latency, now, failed=failed)

    def fastest(self, route: Route, now: float) -> MessageQueue | None:
        """Return the next queue of the broker that answered fastest; None while none has answered."""
        names = {queue.brokerName for queue in route.writable}
        faults = self.faults
        available = {name for name in names if faults is None or faults.is_available(name, now)} or names
        best = self.latencies.fastest(available)
        if best is None:
            return None
        queues = [queue for queue in route.writable if queue.brokerName == best]
        return queues[self._turn(route.topic) % len(queues)]

    def _turn(self, topic: str) -> int:
        """Return the next number of a topic; both calls are one step each, so no thread waits for another one."""
        return next(self._turns.setdefault(topic, itertools.count()))


def queue_of_group(route: Route, message_group: str) -> MessageQueue:
    """Return the queue that keeps a message group in order."""
    return route.permitted[queue_in_order(message_group, len(route.permitted))]
