"""The entry point of `shmq`, with a shorter way for `shmq health --fast`, which monitoring calls often.

Importing click takes longer than the check itself, which is 3 ms of 40, so this module parses the line alone. It takes
a line only if it knows every word of it; every other line, mistakes included, goes to `cli.py`, where the same command
gives the same answers.

What is imported on this way must stay little (`tests/tools/test_start.py` has the list of what may not be): modules on
it use named tuples instead of data classes, which import `inspect`, need neither the client nor the broker, and import
inside functions what only other callers need.

    shmq health --fast [--json | --format FORMAT] [-u URL] [-q]

`run` is for a process that is nothing but this command: such a check collects no garbage, and ends without taking the
interpreter apart, which would be a sixth of its time. Nothing is lost by that: it has opened files only to read them.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from shmq.shm.descriptors import open_standard

_VALUED = {"--format": "form", "-u": "url", "--url": "url"}
_FLAGS = {"--fast", "--json", "-q", "--quiet", "--no-color"}


def run(*words_before: str) -> int:
    """Be the command `shmq`: run what the command line says and return the exit status, or end the process with it.

    Args:
        words_before: the command, where the line has only what follows it.
    """
    open_standard()
    keep_interrupts()
    words = [*words_before, *sys.argv[1:]]
    if _asks_fast(words):
        gc.disable()
        status = _fast_health(words[1:])
        if status is not None:
            os._exit(status)
        gc.enable()
    status = _whole(words)
    # A KeyboardInterrupt in code of a string, as dataclasses are made of, has the interpreter end by SIGINT whatever
    # was done about it. The next such code takes that back.
    exec("")
    return status


def keep_interrupts() -> None:
    """Have a Ctrl-C come again that the interpreter has dropped.

    It drops what is raised in a callback of its own, such as that of an import's lock: a command would go on for ever.
    """
    tell = sys.unraisablehook

    def hear(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            import _thread

            _thread.start_new_thread(_interrupt, (_thread.get_ident(),))  # raised in here it would be dropped, too
        else:
            tell(unraisable)

    sys.unraisablehook = hear


def _interrupt(thread: int) -> None:
    import signal
    import time

    time.sleep(0.01)
    signal.pthread_kill(thread, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one call of `shmq` in a process that goes on, and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    status = _fast_health(words[1:]) if _asks_fast(words) else None
    return _whole(words) if status is None else status


def _asks_fast(words: Sequence[str]) -> bool:
    return list(words[:1]) == ["health"] and "--fast" in words


def _whole(words: Sequence[str]) -> int:
    from shmq.tools.cli import main as whole

    return whole(words)


def _understood(words: Sequence[str]) -> tuple[set[str], dict[str, str]] | None:
    flags: set[str] = set()
    values: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, is_joined, value = word.partition("=")
        if word in _FLAGS:
            flags.add(word)
        elif name in _VALUED and (is_joined or rest):
            values[_VALUED[name]] = value if is_joined else rest.pop(0)
        else:
            return None
    return flags, values


def _fast_health(words: Sequence[str]) -> int | None:
    """Return the exit status, None for a line that is not plain enough."""
    understood = _understood(words)
    if understood is None:
        return None
    flags, values = understood
    form = values.get("form") or ("json" if "--json" in flags else "table")
    from shmq.errors import ShmqError
    from shmq.tools.broker.contexts import current_url

    try:
        url = values.get("url") or os.environ.get("SHMQ_URL") or current_url()
    except ShmqError:
        return None
    if form not in ("table", "json", "nagios") or not (url is None or url.startswith("shmq:")):
        return None
    from shmq.figures.observer import Observer
    from shmq.figures.thresholds import Thresholds
    from shmq.tools.health.examine import examine

    try:
        with Observer(url) as observer:
            report = examine(observer, Thresholds(), "quick")
    except ShmqError:
        return None  # the long way says what is wrong
    if form == "json":
        import json

        text = json.dumps(report.document(), ensure_ascii=False, indent=2)
    elif form == "nagios":
        text = report.nagios()
    else:
        text = "" if flags & {"-q", "--quiet"} else "\n".join(report.lines(colored=_colored(flags)))
    return _said(text, report.verdict.exit_status)


def _colored(flags: set[str]) -> bool:
    if "--no-color" in flags or "NO_COLOR" in os.environ:
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _said(text: str, status: int) -> int:
    try:
        if text:
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")
            sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more at its end
        if not isinstance(error, BrokenPipeError):
            from shmq.tools.command import Call
            from shmq.tools.terminal.output import output_lost

            return Call().terminal.fail(output_lost(error))
    return status
