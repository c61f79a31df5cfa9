"""What a local program sends while its broker changes its leader: the send waits for it, within its own timeout.

    the log refuses     another broker may be the leader now; this host follows, and who leads is not known; the leader
                        cannot be reached; the segments are given up, as a host does that leads no more
    the send            is made anew after 5, 10, 20, …, 100 ms: in shared memory, or to the leader on another host
    refused again       it waits again, until its timeout is over; then the last refusal is raised

Invariants:
    (1) what is made anew has stored nothing: an error that says `maybe_stored` is raised at once, and so is that of a
        call whose arguments could be read only once;
    (2) a broker that is not elected has no other leader to wait for: its refusals are raised at once;
    (3) sends that are stored pay nothing for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmq.client.edge import edge
from shmq.client.keywords import is_read_once
from shmq.client.kinds import check_wait
from shmq.client.refusals import made_anew, may_be_taken_elsewhere
from shmq.client.wire import HandedOver, MessageSender
from shmq.errors import ShmqError


class RefusedSends:
    """Carries out the sends of one local sender that its host refuses for now; any thread may use it.

    Args:
        timeout: seconds of a send that names none.
        sender: makes what sends as things are now, and waits for no leader.
        is_elected: whether the broker's leader is elected.
    """

    __slots__ = ("_is_elected", "_sender", "_timeout")

    def __init__(self, timeout: float, sender: Callable[[], MessageSender], is_elected: Callable[[], bool]) -> None:
        self._timeout = timeout
        self._sender = sender
        self._is_elected = is_elected

    @edge
    def __call__(
        self, method: str, error: BaseException, positional: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Any] | None:
        """Return what the method returns, in a tuple; None where there is nothing to wait for.

        Args:
            error: of the send that was refused.

        Raises:
            NotMaster, ConnectError: no broker has taken it in time.
            The errors of `send`.
        """
        if not may_be_taken_elsewhere(error) or not self._is_elected():
            return None
        if is_read_once((*positional, *named.values())):
            return None
        deadline = time.monotonic() + check_wait(named.get("timeout"), self._timeout)
        send = lambda left: getattr(self._sender(), method)(*positional, **{**named, "timeout": left})  # noqa: E731
        return (made_anew(send, error, deadline, may_be_taken_elsewhere),)


class WaitingSender(HandedOver):
    """Another sender, whose refusals go to `RefusedSends`; see `MessageSender`.

    A core producer hands its refusals over by itself.
    """

    def __init__(self, sender: MessageSender, refused: RefusedSends) -> None:
        self._sender = sender
        self._refused = refused

    def _carry_out(self, method: str, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            return getattr(self._sender, method)(*positional, **named)
        except ShmqError as error:
            answer = self._refused(method, error, positional, named)
            if answer is None:
                raise
        return answer[0]
