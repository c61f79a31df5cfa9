"""What a handler of a signal does at every place where the signal can come, and what another thread can do there."""

import gc
import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Literal, Protocol

_PATIENCE_SECONDS: Final = 60.0  # a machine that stands still for a while is no handler that waits for ever

Place = Literal["line", "opcode"]


def interrupted_everywhere(
    action: Callable[[], object], handler: Callable[[], object], *, before: Place = "line"
) -> int:
    """Run `action` with `handler` called before each line of Python in it; return how often that was.

    Args:
        before: an opcode is the least step, between two of which another thread may come.

    Raises:
        AssertionError: the action does not end: the handler waits for what its own thread holds.
        BaseException: what the action raises.
    """
    calls = 0
    raised: list[BaseException] = []

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal calls
        frame.f_trace_opcodes = before == "opcode"
        if event == before:
            calls += 1
            handler()
        return trace

    def run() -> None:
        collects = gc.isenabled()
        gc.disable()  # finalizers of whatever test's objects would count as lines of the action, in one run of two
        sys.settrace(trace)
        try:
            action()
        except BaseException as error:
            raised.append(error)
        finally:
            sys.settrace(None)
            if collects:
                gc.enable()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    assert not thread.is_alive(), "the handler waits for what its own thread holds"
    if raised:
        raise raised[0]
    return calls


class Lock(Protocol):
    """A lock or a condition."""

    def acquire(self, blocking: bool = ..., /) -> bool: ...
    def release(self) -> None: ...


def by_another_thread(action: Callable[[], object], *, unless_held: Lock) -> None:
    """Let another thread do something, which takes that lock; where this thread holds it, that would come later."""

    def run() -> None:
        if unless_held.acquire(False):
            unless_held.release()
            action()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


class Meeting(Protocol):
    """What two threads do, made anew for each place where they may meet, and what has to be so behind it."""

    def action(self) -> object:
        """The one thread's part."""

    def other(self) -> object:
        """The other one's, as a whole, at one place of the first."""

    def check(self) -> object:
        """Look at what came of both."""


def met_everywhere(meeting: Callable[[], Meeting], *, before: Place = "line") -> int:
    """Let the other thread come before each line of the action, once for each; return how many there are."""
    for at in itertools.count():
        scene, places = meeting(), itertools.count()

        def come(scene: Meeting = scene, places: "itertools.count[int]" = places, at: int = at) -> None:
            if next(places) == at:
                scene.other()

        count = interrupted_everywhere(scene.action, come, before=before)
        scene.check()
        if at >= count:
            return count
    raise AssertionError("it counts for ever")
