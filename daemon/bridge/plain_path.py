"""Sends and pulls over TCP that need no command: answered at the front of what a connection sent.

    bytes of a connection ──▶ sends (`SendPath`) ──▶ answers, queues with new messages
                          └─▶ pulls (`PullPath`) ──▶ answers        └─▶ held (`HeldAnswers`) until the log is safe

What the path leaves, from its first frame on, becomes commands. Where messages count on the disk only, their answers
wait here for the durable end of the log. An answer that waits too long says so, and one that waits until the lease of
the log is over says that the message is in doubt.

Invariants:
 1. Nothing in it waits, and nothing that it raises ends a connection: it is noted, and the frames become commands.
 2. It is closed where sends wait for others that came before them, and where accounts need more than the message.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from shmq.addresses import Address
from shmq.daemon.bridge.busy_poll import BusyPoll
from shmq.daemon.bridge.figures import BridgeFigures, code_of
from shmq.daemon.bridge.held_answers import Entry, HeldAnswers, Waiter, send
from shmq.daemon.bridge.limited_log import LimitedLog
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.pull_path import PULLS, PullPath
from shmq.daemon.bridge.send_path import Held, Origin, SendPath
from shmq.daemon.logic.effects import Effect
from shmq.errors import ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.frame import Frame

# The message is on this disk, so it is visible; the last one is of a log whose lease is over.
_SAFE = (Response.SUCCESS, Response.SLAVE_NOT_AVAILABLE, Response.SERVICE_NOT_AVAILABLE)


class Client(Waiter, Protocol):
    """A connection, as the path sees it."""

    connection_id: int
    remote: Address | None
    local: Address | None
    refused: frozenset[int]
    refusal: str
    origin: Origin | None


class Fed(NamedTuple):
    """What came of some bytes of a connection: those before `end` are served, and these are the answers of now."""

    end: int = 0
    answers: Sequence[bytes] = ()
    held_bytes: int = 0  # of answers that wait for the disk


_NOTHING = Fed()


class PlainPath:
    """The plain path of one bridge.

    Args:
        is_open_for_sends: whether nothing has to be asked but the core.
        stored: called with queues (by index) that have new messages; the answers written now go out first.
    """

    def __init__(
        self,
        sends: SendPath,
        pulls: PullPath,
        limits: BridgeLimits,
        figures: BridgeFigures,
        log: LimitedLog,
        busy_poll: BusyPoll,
        is_open_for_sends: Callable[[], bool],
        stored: Callable[[Sequence[int]], None],
    ) -> None:
        self._sends = sends
        self._pulls = pulls
        self._limits = limits
        self._figures = figures
        self._log = log
        self._busy_poll = busy_poll
        self._is_open_for_sends = is_open_for_sends
        self._stored = stored
        self._held = HeldAnswers(sends.flush_timeout)
        self._want: Callable[[int], None] | None = None
        self._outcome: Callable[[int], Response] = lambda end: Response.SUCCESS

    def origin_of(self, client: Client) -> Origin | None:
        """The hosts for plain sends of a connection; None where they have to become commands."""
        if client.remote is None or client.local is None or client.refusal:
            return None
        return self._sends.origin(client.remote, client.local)

    def serve_sends(self, client: Client, data: bytes) -> Fed:
        """Store the plain sends at the front of what a connection sent; the answers are the caller's to write."""
        if client.origin is None or not self._is_open_for_sends():
            return _NOTHING
        began_ns = time.monotonic_ns()
        try:
            served = self._sends.serve(data, client.origin, frame_bytes_max=self._limits.frame_bytes_max)
        except ShmqError as error:
            self._log("sends.failed", reason=str(error))
            return _NOTHING
        if not served.frame_count:
            return _NOTHING
        held = served.held
        count = served.frame_count - served.doubted_count - (held.frame_count if held is not None else 0)
        if count:
            self._figures.plain(code_of(data), count, began_ns)
        if served.doubted_count:
            unavailable = Response.SERVICE_NOT_AVAILABLE
            self._figures.plain(code_of(data), served.doubted_count, began_ns, answer=unavailable)
        self._busy_poll.arrived()
        if served.queues:
            self._stored(served.queues)
        if held is not None:
            self._hold(client, held, data)
            self._busy_poll.rest()
        answers = (served.answers,) if served.answers else ()
        return Fed(served.end, answers, len(held.answers) if held is not None else 0)

    def serve_pulls(self, client: Client, data: bytes) -> Fed:
        """Answer the plain pulls at the front of what a connection sent; the answers are the caller's to write.

        The loop is not kept awake for them: a client that got a batch of messages works on it before it asks for more.
        """
        if client.refused or not self._pulls.is_open:
            return _NOTHING
        began_ns = time.monotonic_ns()
        try:
            pulled = self._pulls.serve(client.connection_id, data, self._limits)
        except ShmqError as error:
            self._log("pulls.failed", reason=str(error))
            return _NOTHING
        if not pulled.answers:
            return _NOTHING
        self._figures.plain(pulled.code, len(pulled.answers), began_ns)
        return Fed(pulled.end, pulled.answers)

    def see(self, client: Client, frame: Frame, command: Command, effects: Sequence[Effect]) -> None:
        """Learn from a request that was served as a command: the next one like it may be plain."""
        if client.remote is not None and command.code in PULLS:
            self._pulls.see(frame, command, effects)

    # -- answers that wait for the disk

    def call_to_want(self, want: Callable[[int], None], outcome: Callable[[int], Response]) -> None:
        """Have `want` called with a log position that answers wait for; `outcome` says by which code they go out."""
        self._want, self._outcome = want, outcome

    def _hold(self, waiter: Waiter, held: Held, data: bytes) -> None:
        """Keep answers until the disk has what they acknowledge; `data` begins with what they answer."""
        is_first = self._held.wanted_end is None
        self._held.hold(waiter, held, time.monotonic(), code=code_of(data), began_ns=time.monotonic_ns())
        if is_first and self._want is not None:
            self._want(held.end)

    def flushed(self, durable_end: int) -> tuple[int, ...]:
        """Send what the log is safe for now; return the queues (by index) whose messages became visible."""
        if self._held.wanted_end is None:
            return ()
        return self._release(self._held.take_durable(durable_end), self._outcome(durable_end))

    def flush_failed(self) -> None:
        """Answer what waits for the disk: nothing more reaches it."""
        self._release(self._held.take_all(), Response.FLUSH_DISK_TIMEOUT)

    def check_time(self) -> tuple[int, ...]:
        """Send what has waited too long; return the queues whose messages are visible all the same."""
        late = self._held.take_late(time.monotonic())
        return self._release(late, self._outcome(late[-1].held.end)) if late else ()

    def _release(self, entries: Sequence[Entry], code: Response) -> tuple[int, ...]:
        try:
            send(entries, code)
        except Exception as error:  # some could not be sent; the others have been
            self._log.failed("answers that were held", error)
        for entry in entries:
            self._figures.plain(entry.code, entry.held.frame_count, entry.began_ns, answer=code)
        end = self._held.wanted_end
        if end is not None and self._want is not None:
            self._want(end)
        return tuple({queue: None for entry in entries for queue in entry.held.queues}) if code in _SAFE else ()
