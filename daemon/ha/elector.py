"""Runs one member of an election on a real clock: the state machine, the coordination store, and the broker.

    the inbox           <- the link: messages, ends, cuts, flushes; commands; a tick each 100 ms
    one thread          takes them one after the other, and does the effects in their order
    a few threads       ask the store; each answer goes into the inbox
    one thread          watches the store; each view goes into the inbox

What an election needs of a broker is `ElectedBroker`: its implementation has the core, the link and the switch.

Invariants:
 1. Only the thread of `run` touches the member and calls the broker, so what is forbidden is forbidden before a peer or
    the store hears of it.
 2. A position is sent only in the epoch that the member acknowledges, and to the leader that it follows.
 3. Times are those of CLOCK_BOOTTIME, which goes on while the host sleeps.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from shmq.daemon.ha.election.coordination import (
    Answer,
    Commit,
    Coordination,
    Grant,
    KeepAlive,
    Refused,
    Request,
    StoreRefused,
    StoreUnanswered,
    View,
)
from shmq.daemon.ha.election.effects import (
    Allow,
    Ask,
    Effect,
    Finished,
    Follow,
    Message,
    Position,
    Promote,
    Rest,
    Tell,
)
from shmq.daemon.ha.election.member import Member, Status
from shmq.daemon.ha.election.policy import READ_AGAIN_MS, Identity, Policy
from shmq.daemon.ha.in_sync import Verdict
from shmq.errors import ShmqError, UsageError

TICK_MS = 100
FOLLOW_AGAIN_MS = 1_000
UNREAD_MS = 3_000  # a store that was not read for as long is said to be so
_ASKERS = 4  # a keep-alive, a change, a read, and one more
_ValueT = TypeVar("_ValueT")


class Positions(NamedTuple):
    """How far this broker's log reaches, on its disk too, and its leader's as far as it was heard of."""

    end: int
    flushed: int
    leader_end: int


class ElectedBroker(Protocol):
    """What an election wants of a broker. None of it waits for another host, or for the store."""

    def positions(self) -> Positions:
        """Say how far the log reaches."""

    def allow(self, until_ms: int, reason: str) -> None:
        """Let the core append, and give receipts, until a time of CLOCK_BOOTTIME; 0: not at all, for the reason."""

    def promote(self, epoch: int, why: str) -> None:
        """Begin an epoch at the log's end; followers are shipped to from there on.

        Raises:
            ShmqError, OSError: it cannot, and has stored nothing in that epoch: another broker has to lead.
        """

    def follow(self, uuid: str, address: str, epoch: int) -> bool:
        """Begin to copy a leader; once the log was cut, on the disk too, `Elector.was_cut` is called.

        Returns False where it could not begin, and has to be asked again.
        """

    def rest(self, reason: str) -> None:
        """Neither lead nor follow: end the links, append nothing, show nothing above what is known as confirmed."""

    def tell(self, peer: str, message: Message) -> None:
        """Say something to a peer over the link, if there is one."""

    def confirm(self, verdict: Verdict) -> int | None:
        """Give the core what is on the other disks; return how far it has confirmed. None: that failed for now."""


class Elector:
    """One broker's part in the elections of its group.

    Args:
        epoch: the newest one that the log of this store knows; 0: none.
        store: of its own; any thread may call it.
    """

    def __init__(self, me: Identity, policy: Policy, epoch: int, store: Coordination, broker: ElectedBroker) -> None:
        self._store, self._broker = store, broker
        self._member = Member(me, policy, epoch, now_ms(), is_empty=not broker.positions().end)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._following: Follow | None = None
        self._follow_at_ms: int | None = None  # the broker could not begin to follow, and is asked again
        self._allowed: Allow | None = None
        self._is_finished = False
        self._ending = threading.Event()
        self._askers = ThreadPoolExecutor(_ASKERS, "asks-the-store")
        self._unread: dict[str, tuple[int, str]] = {}  # since when the store does not answer which thread, and why

    def run(self) -> None:
        """Take part until the member has stopped in order, or `end` is called.

        Raises:
            Exception: what the broker's part raises; nothing is allowed to the core from then on.
        """
        watcher = threading.Thread(target=self._watch, name="watches-the-store", daemon=True)
        watcher.start()
        tick_ms = 0
        try:
            while not (self._is_finished or self._ending.is_set()):
                now = now_ms()
                if now >= tick_ms:
                    tick_ms = now + TICK_MS
                    self._tick()
                try:
                    self._inbox.get(timeout=max(tick_ms - now_ms(), 0) / 1_000)()
                except queue.Empty:
                    continue
                self._do()
        finally:
            self._ending.set()
            self._broker.allow(0, "this broker takes no part in elections any more")
            self._askers.shutdown(cancel_futures=True)

    def end(self) -> None:
        """Let `run` return soon, without handing over; any thread may call, and every method below."""
        self._ending.set()
        self._inbox.put(_nothing)

    def hears(self, peer: str, message: Message) -> None:
        """A peer has said something over the link."""
        self._inbox.put(lambda: self._member.heard(peer, message, now_ms()))

    def gone(self, peer: str) -> None:
        """The link to a follower has ended."""
        self._inbox.put(lambda: self._member.gone(peer, now_ms()))

    def was_cut(self, epoch: int) -> None:
        """The log was cut where it stops being a part of that of the leader of an epoch, on the disk too."""

        def cut() -> None:
            self._member.cut(epoch)
            self._report()

        self._inbox.put(cut)

    def was_flushed(self) -> None:
        """Report that there is more on the disk than before."""
        self._inbox.put(self._report)

    def hand_over(self, successor: str = "") -> str:
        """Let a member in sync lead, the best one if none is named; return why not."""
        return self._call(lambda: self._member.hand_over(successor, now_ms()))

    def promote(self, *, is_forced: bool = False) -> str:
        """An operator wants this broker to lead; return why not."""
        return self._call(lambda: self._member.promote(now_ms(), is_forced=is_forced))

    def stop(self) -> None:
        """Hand over, or leave the set; then `run` returns."""
        self._inbox.put(lambda: self._member.stop(now_ms()))

    def status(self) -> Status:
        """Return what is shown."""
        status, unread = self._call(lambda: self._member.status(now_ms())), list(self._unread.values())
        since, reason = min(unread, default=(0, ""))
        if status.reason or not unread or now_ms() - since < UNREAD_MS:
            return status
        return status._replace(reason=reason)

    # The thread of `run`

    def _call(self, what: Callable[[], _ValueT]) -> _ValueT:
        called: Future[_ValueT] = Future()

        def call() -> None:
            try:
                called.set_result(what())
            except BaseException as error:
                called.set_exception(error)
                raise

        self._inbox.put(call)
        while not called.done():
            wait([called], TICK_MS / 1_000)
            if self._ending.is_set() and not called.done():
                raise UsageError("this broker takes no part in elections any more", hint="shmq health says why")
        return called.result()

    def _tick(self) -> None:
        self._tell_positions()
        self._allow_again()
        self._follow_again()
        self._member.tick(now_ms())
        self._do()
        self._report()

    def _follow(self, leader: Follow) -> None:
        is_begun = self._broker.follow(leader.uuid, leader.address, leader.epoch)
        self._follow_at_ms = None if is_begun else now_ms() + FOLLOW_AGAIN_MS

    def _follow_again(self) -> None:
        if self._following is not None and self._follow_at_ms is not None and now_ms() >= self._follow_at_ms:
            self._follow(self._following)

    def _allow_again(self) -> None:
        """A sender that was stopped while the lease before was over may have fenced the log since."""
        allowed = self._allowed
        if allowed is not None and allowed.until_ms > now_ms():
            self._broker.allow(allowed.until_ms, allowed.reason)

    def _tell_positions(self) -> None:
        positions = self._broker.positions()
        self._member.log(positions.end, positions.leader_end, now_ms())

    def _report(self) -> None:
        epoch, leader = self._member.acknowledges, self._following
        if leader is not None and epoch == leader.epoch:
            positions = self._broker.positions()
            self._broker.tell(leader.uuid, Position(epoch, positions.end, positions.flushed))

    def _do(self) -> None:
        while effects := self._member.take():
            for effect in effects:
                self._do_one(effect)
                self._tell_positions()
        verdict = self._member.verdict()
        if verdict is not None:
            confirmed_end = self._broker.confirm(verdict)
            if confirmed_end is not None:
                self._member.confirmed(confirmed_end)

    def _do_one(self, effect: Effect) -> None:
        if isinstance(effect, Allow | Promote | Follow | Rest):
            self._allowed = effect if isinstance(effect, Allow) else None
        if isinstance(effect, Ask):
            self._askers.submit(self._ask, effect.number, effect.request)
        elif isinstance(effect, Allow):
            self._broker.allow(effect.until_ms, effect.reason)
        elif isinstance(effect, Tell):
            self._broker.tell(effect.peer, effect.message)
        elif isinstance(effect, Promote):
            self._following = None
            self._promote(effect)
        elif isinstance(effect, Follow):
            self._following = effect
            self._follow(effect)
        elif isinstance(effect, Rest):
            self._following = None
            self._broker.rest(effect.reason)
        elif isinstance(effect, Finished):
            self._is_finished = True

    def _promote(self, effect: Promote) -> None:
        try:
            self._broker.promote(effect.epoch, effect.why)
        except (ShmqError, OSError) as error:
            self._member.unable(f"this broker was elected, and cannot lead: {error}", now_ms())
        else:
            self._member.promoted(now_ms())

    # The threads beside it

    def _ask(self, number: int, request: Request) -> None:
        try:
            answer = self._answer(request)
        except BaseException as error:
            self._inbox.put(partial(_raise, error))
        else:
            self._inbox.put(lambda: self._member.answered(number, answer, now_ms()))

    def _answer(self, request: Request) -> Answer | None:
        try:
            if isinstance(request, Commit):
                outcome = self._store.commit(request.transaction)
                self._heard("asks", None)
                return outcome
            if isinstance(request, Grant):
                return self._store.grant(request.ttl_ms)
            if isinstance(request, KeepAlive):
                return self._store.keep_alive(request.lease)
            return self._store.revoke(request.lease)
        except (StoreRefused, StoreUnanswered) as error:
            self._heard("asks", error)
            return Refused(str(error)) if isinstance(error, StoreRefused) else None

    def _watch(self) -> None:
        revision = 0
        while not self._ending.is_set():
            try:
                view = self._store.watch(revision)
            except (StoreRefused, StoreUnanswered) as error:
                self._heard("watches", error)
                self._ending.wait(READ_AGAIN_MS / 1_000)
                continue
            self._heard("watches", None)
            if view.revision <= revision:
                self._ending.wait(TICK_MS / 1_000)
                continue
            revision = view.revision
            self._inbox.put(partial(self._see, view))

    def _heard(self, thread: str, error: ShmqError | None) -> None:
        if error is None:
            self._unread.pop(thread, None)
            return
        since, _ = self._unread.get(thread, (now_ms(), ""))
        self._unread[thread] = since, f"{error}; {error.hint}" if error.hint else str(error)

    def _see(self, view: View) -> None:
        self._member.seen(view, now_ms())


def now_ms() -> int:
    """Return the time of CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _raise(error: BaseException) -> None:
    raise error


def _nothing() -> None:
    """Only wakes the thread."""
