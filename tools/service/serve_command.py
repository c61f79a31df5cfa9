"""`shmq serve`: become a broker, or start one in the background.

The daemon is another program, `python -m shmq.daemon serve`; this command never imports it, and hands it the settings
of `shmq/options/broker.py` as JSON.

    foreground, text    this process becomes the daemon; signals, exit status and words are the daemon's own
    foreground, JSON    the same, and a short-lived child turns the daemon's announcement into our JSON
    --detach            the daemon gets a session of its own; this process waits for its announcement

Becoming the daemon instead of watching it saves a process, and nothing stands between a service manager and the broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import time
from typing import Any

import click

from shmq import errors
from shmq.exit_code import ExitCode
from shmq.figures.quantity import count_text
from shmq.options.broker import OPTIONS
from shmq.plain_file import open_plain
from shmq.shm.place import (
    DEFAULT_BROKER_NAME,
    Place,
    absolute_path,
    check_broker_name,
    check_store_path,
    checked,
    default_store,
    place_of,
)
from shmq.store.commitlog import FILE_BYTES_MIN, FILE_BYTES_MULTIPLE
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.service.broker_config import origins_of, read_broker_config
from shmq.tools.service.interpreter import executing, replace_by_daemon
from shmq.tools.service.settings import options_from, settings_given

READY_TIMEOUT = 600.0  # seconds; a large store that was not closed is read through once
LINE_BYTES_MAX = 1 << 20


@click.command(cls=Command)
@click.option(
    *("--config", "_config"),
    type=click.Path(dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=read_broker_config,
    metavar="FILE",
    help="TOML with these options; the command line wins.",
)
@options_from(OPTIONS)
@click.option("--detach", is_flag=True, help="Start in the background, return when it is ready.")
@click.option("--log-file", type=click.Path(dir_okay=False), help="Where a detached broker writes its events.")
@pass_call
def serve(call: Call, /, detach: bool, log_file: str | None, **given: Any) -> int:
    """Run a broker on this host, until Ctrl-C or SIGTERM."""
    if given["runtime_dir"] is None and call.named_url is not None:
        place = place_of(call.named_url)  # the current context says which broker to talk to, not which to start
    else:
        place = place_named(given["name"], given["runtime_dir"])
    if log_file is not None and not detach:
        raise errors.UsageError("--log-file is for --detach", hint="redirect stderr instead: 2>FILE")
    settings = settings_of(place, **given) | {"origins": origins_of(click.get_current_context())}
    command = [sys.executable, "-P", "-m", "shmq.daemon", "serve", "--options", json.dumps(settings)]
    if detach:
        return _serve_in_background(call, place, command, log_file)
    sys.stdout.flush()
    if call.terminal.structured:
        _announce_from_child(call, place, command)
    elif call.style.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    replace_by_daemon(command)


def settings_of(place: Place, **given: Any) -> dict[str, Any]:
    """Return the settings of a broker at this place with these options of `shmq serve`."""
    file_bytes = given["file_size"]
    if file_bytes is not None and (file_bytes < FILE_BYTES_MIN or file_bytes % FILE_BYTES_MULTIPLE):
        raise errors.UsageError(
            f"a CommitLog file cannot have {file_bytes} bytes",
            hint=f"--file-size takes multiples of {FILE_BYTES_MULTIPLE}, at least {FILE_BYTES_MIN}; 1G is RocketMQ's",
        )
    store = check_store_path(absolute_path(given["store"]) if given["store"] else default_store(place.broker_name))
    if given["metrics"] is not None and given["metrics"].isdecimal():
        given["metrics"] = f"127.0.0.1:{given['metrics']}"
    places = {"broker_name": place.broker_name, "runtime_dir": str(place.runtime_dir), "store": str(store)}
    return settings_given(OPTIONS, given) | places


def place_named(name: str | None, runtime_dir: str | None) -> Place:
    """Return where a broker of this name is, or would be."""
    name = check_broker_name(DEFAULT_BROKER_NAME if name is None else name)
    return place_of(f"shmq://{name}") if runtime_dir is None else checked(Place(name, absolute_path(runtime_dir)))


def _announce_from_child(call: Call, place: Place, command: list[str]) -> None:
    """Fork twice, so that init reaps the child that speaks for the daemon this process becomes."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command += ["--json", "--ready-fd", str(writing)]
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.close(writing)
            announcement = read_announcement(reading, READY_TIMEOUT)
            if announcement:
                _announce(call, place, announcement)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(reading)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _serve_in_background(call: Call, place: Place, command: list[str], log_file: str | None) -> int:
    path = absolute_path(log_file) if log_file is not None else place.runtime_dir / "serve.log"
    if log_file is None:
        place.runtime_dir.parent.mkdir(parents=True, exist_ok=True)
        place.runtime_dir.mkdir(mode=0o700, exist_ok=True)
    reading, writing = os.pipe()
    try:
        own = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) if log_file is None else path
        with open(own, "ab") as log, executing(command[0]):
            process = subprocess.Popen(
                [*command, "--json", "--ready-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        announcement = read_announcement(reading, READY_TIMEOUT if call.timeout is None else call.timeout)
    finally:
        os.close(reading)
    if announcement:
        return _announce(call, place, announcement)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.0 if announcement is None else READY_TIMEOUT)  # what says nothing more is about to end
    if process.returncode is None:
        raise errors.RequestTimeout(
            f'broker "{place.broker_name}" (pid {process.pid}) is not ready yet', hint=f"it goes on; see {path}"
        )
    raise errors.BrokerNotRunning(
        f'broker "{place.broker_name}" ended with status {process.returncode} before it was ready', hint=f"see {path}"
    )


def read_announcement(descriptor: int, timeout: float) -> dict[str, Any] | None:
    """Return the one line the daemon says about its start; None when it says nothing in time, {} when it never will."""
    deadline = time.monotonic() + timeout
    line = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            return None
        piece = os.read(descriptor, 65536)
        if not piece:
            return {}
        line += piece
    document = json.loads(line)
    return document if isinstance(document, dict) else {}


def _announce(call: Call, place: Place, announcement: dict[str, Any]) -> int:
    """Tell in our words what the daemon said; return the exit status."""
    if not announcement.get("ready"):
        return call.terminal.fail(_error_of(announcement), status=int(announcement["exit"]))
    document = {
        "broker": place.broker_name,
        "url": place.url,
        "pid": announcement["pid"],
        "socket": announcement["socket"],
        "store": announcement["store"],
        "segments": announcement["kind"],
        "generation": announcement["generation"],
        "recovered_messages": announcement["records"],
        "damages": len(announcement["damages"]),
        "seconds": announcement["seconds"],
        "metrics": announcement.get("metrics"),
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        name = f'broker "{place.broker_name}" (pid {document["pid"]})'
        replayed = f", replayed {count_text(document['recovered_messages'])} messages"
        call.terminal.say(
            f"{name} runs in the background; ready in {document['seconds']:.1f} s"
            f"{replayed if document['recovered_messages'] else ''}\n"
            f"  store   {document['store']}\n"
            + (f"  metrics {document['metrics']}\n" if document["metrics"] else "")
            + f"  stop    shmq stop{_address(place)}"
        )
    return ExitCode.DONE


def _address(place: Place) -> str:
    """Return the option that leads to this broker from here, if one is needed."""
    if place == place_of(None):
        return ""
    named_url = f"shmq://{place.broker_name}"
    return f" -u {named_url}" if place == place_of(named_url) else f" -u {shlex.quote(place.url)}"


def _error_of(announcement: dict[str, Any]) -> errors.ShmqError:
    """Return an error of the kind the daemon named, so that its type and code are what a caller expects."""
    kind = getattr(errors, str(announcement.get("kind")), errors.ShmqError)
    message, hint = str(announcement["error"]), str(announcement.get("hint", ""))
    try:
        error = kind(message, hint=hint)
    except TypeError:  # a class that wants to know more than was said
        error = errors.StoreError(message, hint=hint)
    return error if isinstance(error, errors.ShmqError) else errors.ShmqError(message, hint=hint)
