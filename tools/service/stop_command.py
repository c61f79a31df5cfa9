"""`shmq stop`: end a broker in order and wait until it is gone.

Only the supervisor is signalled; it ends its own processes. The signal goes through a pidfd whose process was proven by
pid and start time after the pidfd was opened, so it cannot hit another process with the same number.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time

import click

from shmq.errors import BrokerNotRunning, PermissionDenied, RequestTimeout
from shmq.exit_code import ExitCode
from shmq.figures.quantity import age_text
from shmq.shm.liveness import ProcessMark, is_alive, is_seen_alive
from shmq.tools.broker.memory import find_instance
from shmq.tools.command import Call, Command, pass_call

STOP_TIMEOUT = 30.0  # seconds; a large store has much to flush


@click.command(cls=Command)
@pass_call
def stop(call: Call) -> int:
    """Stop the broker in order and wait until it is gone.

    Exit status 1 if none runs.
    """
    try:
        place, instance = find_instance(call.url)
    except BrokerNotRunning as error:
        return _none_runs(call, str(error))
    mark = instance.processes.get("supervisor")
    seconds = None if mark is None else stop_process(mark, STOP_TIMEOUT if call.timeout is None else call.timeout)
    if mark is None or seconds is None:
        return _none_runs(
            call, f'no broker "{place.broker_name}" runs on this host (what {place.runtime_dir} has is old)'
        )
    if call.terminal.structured:
        call.terminal.document(
            {"stopped": True, "broker": place.broker_name, "pid": mark.pid, "seconds": round(seconds, 3)}
        )
    else:
        call.terminal.say(f'broker "{place.broker_name}" (pid {mark.pid}) stopped after {age_text(seconds)}')
    return ExitCode.DONE


def stop_process(mark: ProcessMark, timeout: float) -> float | None:
    """Ask exactly this process to end and wait for it; return the seconds it took, None when it did not live.

    Raises:
        PermissionDenied: it is another user's.
        RequestTimeout: it lives on after `timeout` seconds.
    """
    started = time.monotonic()
    try:
        descriptor = os.pidfd_open(mark.pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None  # there is no process of that number: a thread of another one may have it
        raise
    try:
        if not is_alive(mark):
            return None
        if not is_seen_alive(mark):  # another process may have its number
            raise PermissionError
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        watch = select.poll()
        watch.register(descriptor, select.POLLIN)
        if not watch.poll(timeout * 1000):
            raise RequestTimeout(
                f"the broker (pid {mark.pid}) has not ended within {timeout:g} s",
                hint="it may still be flushing: look at its log, or wait longer with --timeout",
            )
        return time.monotonic() - started
    except ProcessLookupError:
        return None
    except PermissionError as error:
        raise PermissionDenied(
            f"the broker (pid {mark.pid}) belongs to another user", hint="run shmq stop as that user"
        ) from error
    finally:
        os.close(descriptor)


def _none_runs(call: Call, why: str) -> int:
    call.terminal.answer(
        {"stopped": False, "broker": None, "pid": None, "seconds": None}, text=lambda: call.terminal.say(why)
    )
    return ExitCode.NO
