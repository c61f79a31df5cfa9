"""What a handler of a signal does at every place where the signal can come."""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_PATIENCE_SECONDS: Final = 60.0  # a machine that stands still for a while is no handler that waits for ever


def interrupted_everywhere(action: Callable[[], object], handler: Callable[[], object]) -> int:
    """Run `action` with `handler` called before each line of Python in it; return how often that was.

    Raises:
        AssertionError: the action does not end: the handler waits for what its own thread holds.
    """
    calls = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal calls
        if event == "line":
            calls += 1
            handler()
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:
            action()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    assert not thread.is_alive(), "the handler waits for what its own thread holds"
    return calls
