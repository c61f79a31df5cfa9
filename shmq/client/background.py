"""Calls on other threads: what a thread of ours does with one, and a thread of its own for one.

Not an executor: that refuses work once the main thread has ended, while threads that are no daemons, and functions of
`atexit`, still connect, send and close.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from shmq.client.wire import LOG
from shmq.errors import ConnectError

if TYPE_CHECKING:
    from concurrent.futures import Future

ResultT = TypeVar("ResultT")


def carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    """Run a call and end its future with what came of it; nothing is raised, the thread has other futures to serve."""
    try:
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
    except BaseException:  # out of a callback; the future itself reports an Exception only
        LOG.exception("a callback of a future failed")


def elsewhere(call: Callable[..., object], *given: object) -> None:
    """Call on another thread: a collection may come at any time, in any thread, and must not wait."""
    # Not threading.Thread, whose start() waits for the new thread. Where none can be had, the process is about to end.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(call, given)


def begun(call: Callable[[], ResultT], *, name: str) -> Future[ResultT]:
    """Run a call on a thread of its own, which keeps no process alive.

    Raises:
        ConnectError: no thread can be started any more.
    """
    from concurrent.futures import Future  # a local connection needs none, and opens without loading it

    future: Future[ResultT] = Future()
    future.set_running_or_notify_cancel()  # the wait may be cancelled, the call is not
    started(threading.Thread(target=carry_out, args=(future, call), name=name, daemon=True))
    return future


def started(thread: threading.Thread) -> threading.Thread:
    """Start a thread without which there is no connection.

    Raises:
        ConnectError: no thread can be started any more.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise ConnectError(
            f"a connection needs a thread of its own, and none can be started: {error}",
            hint="connect before the program ends (Python 3.12 starts none in functions of atexit), or see `ulimit -u`",
        ) from error
    return thread
