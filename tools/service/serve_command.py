"""`shmq serve`: become a broker, or start one in the background.

The daemon is another program, `python -m shmq.daemon serve`; this command never imports it.

    foreground, text    this process becomes the daemon; signals, exit status and words are the daemon's own
    foreground, JSON    the same, and a short-lived child turns the daemon's announcement into our JSON
    --detach            the daemon gets a session of its own; this process waits for its announcement

Becoming the daemon instead of watching it saves a process, and nothing stands between a service manager and the broker.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from shmq import errors
from shmq.figures.quantity import count_text
from shmq.shm.place import Place, absolute_path, check_broker_name, check_store_path, checked, default_store, place_of
from shmq.store.commitlog import FILE_BYTES_MIN, FILE_BYTES_MULTIPLE
from shmq.tools.command import Call, Command, Duration, Size, pass_call
from shmq.tools.service.broker_config import origins_of, read_broker_config
from shmq.tools.service.interpreter import executing, replace_by_daemon
from shmq.tools.terminal.exit_code import ExitCode

READY_TIMEOUT = 600.0  # seconds; a large store that was not closed is read through once
LINE_BYTES_MAX = 1 << 20


WHEN_FULL = ("refuse", "delete-consumed", "delete-oldest")
_PERCENT = click.IntRange(1, 100)
_CONNECTIONS = click.IntRange(1, 65536)


_TABLES = {
    "topic": ("Topics there can be.", 16384),
    "queue": ("Queues of all topics together.", 131072),
    "frame": ("Frames of 204 queue units in memory.", 262144),
    "client": ("Local processes that send or read at a time.", 1024),
    "group": ("Consumer groups there can be.", 4096),
    "offset": ("Offsets of groups on queues.", 262144),
}
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def table_options(function: FunctionT) -> FunctionT:
    """Add an option for the size of each table of the segments."""
    for name, (text, default) in reversed(_TABLES.items()):
        kind = click.IntRange(1)
        function = click.option(f"--{name}-max", type=kind, metavar="N", help=f"{text}  [{default}]")(function)
    return function


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
@click.option("--name", default="default", show_default=True, help="The broker's name; its URL is shmq://NAME.")
@click.option("--store", type=click.Path(file_okay=False), help="Store directory.  [by name]")
@click.option("--runtime-dir", type=click.Path(file_okay=False), help="Directory of the socket.  [by name]")
@click.option("--file-size", type=Size(), metavar="SIZE", help="Size of one CommitLog file.  [1G]")
@click.option("--flush", type=click.Choice(["async", "sync"]), help="sync: a send returns when it is on disk.")
@click.option(
    "--retention-hours", type=click.IntRange(1), metavar="HOURS", help="Delete log files older than that.  [72]"
)
@click.option("--delete-hour", metavar="HOUR;…", help="Hours of the day at which those go, 0 to 23.  [any]")
@click.option("--when-full", type=click.Choice(WHEN_FULL), help="What a full disk may cost.  [delete-consumed]")
@click.option("--disk-warn-percent", type=_PERCENT, help="Warn, and give empty files back.  [75]")
@click.option("--disk-force-percent", type=_PERCENT, help="Do what --when-full says.  [85]")
@click.option("--disk-refuse-percent", type=_PERCENT, help="Store nothing above that.  [90]")
@click.option("--accept-loss", metavar="BEGIN-END", help="Start without this range of the log, as the refusal told it.")
@click.option("--verify-reads", type=click.Choice(["on", "off"]), help="off: leave out records' checksums.  [on]")
@click.option("--segments", type=click.Choice(["posix", "sysv"]), help="sysv where /dev/shm is too small.")
@click.option("--no-auto-create", is_flag=True, help="A topic must be created before it is used.")
@click.option("--default-queues", type=click.IntRange(1, 1024), help="Queues of a topic created on first use.  [8]")
@click.option("--delay-levels", metavar="LEVELS", help='RocketMQ\'s messageDelayLevel.  ["1s 5s … 2h"]')
@click.option("--timer-max-delay", type=click.IntRange(1), metavar="SECONDS", help="Longest delay=.  [3 days]")
@click.option("--no-tcp", is_flag=True, help="Serve processes of this host only.")
@click.option("--listen", metavar="HOST:PORT", help="Where RocketMQ clients connect.  [127.0.0.1:10911]")
@click.option("--nameserver-listen", metavar="HOST:PORT", help="Where they look topics up.  [127.0.0.1:9876]")
@click.option("--nameserver", metavar="HOST:PORT;…", help="Register there instead of being one.")
@click.option("--nameserver-ca", type=click.Path(dir_okay=False), metavar="FILE", help="TLS there: whom to trust, PEM.")
@click.option("--advertise", metavar="HOST[:PORT]", help="What clients are told to connect to.  [what they reached]")
@click.option("--cluster", help="Name of the cluster.  [DefaultCluster]")
@click.option("--bridges", type=click.IntRange(1, 64), help="Processes that serve TCP.  [1]")
@click.option("--tcp-connections-max", type=_CONNECTIONS, metavar="N", help="TCP connections.  [by ulimit -n]")
@click.option("--address-connections-max", type=_CONNECTIONS, metavar="N", help="Of one address.  [a share of them]")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without access control.")
@click.option("--acl", type=click.Path(dir_okay=False), metavar="FILE", help="plain_acl.yml: who may do what.")
@click.option("--tls-cert", type=click.Path(dir_okay=False), metavar="FILE", help="Certificate, PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False), metavar="FILE", help="Its key, PEM.")
@click.option("--tls-mode", type=click.Choice(["disabled", "permissive", "enforcing"]), help="Who must use TLS.")
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve OpenMetrics over HTTP, on loopback.  [no]")
@click.option(
    "--role",
    type=click.Choice(["master", "sync-master", "slave"]),
    help="slave: copy the log of --master; sync-master: acknowledge what slaves have.  [master]",
)
@click.option("--in-sync-min", type=int, help="Disks that must have a message of a sync-master, its own too.  [1]")
@click.option("--master", metavar="HOST:PORT", help="The broker a slave copies.")
@click.option("--master-ha", metavar="HOST:PORT", help="Where that ships its log.  [its port + 1]")
@click.option("--ha-listen", metavar="HOST:PORT", help="Ship the log to slaves on other hosts.  [no]")
@click.option("--ha-allow", metavar="CIDR;…", help="Which addresses they may have, beside loopback.")
@click.option("--ha-secret-file", type=click.Path(dir_okay=False), metavar="FILE", help="Both ends prove to know it.")
@click.option("--etcd", metavar="URL;…", help="Elect the master of this name over etcd.  [no]")
@click.option("--etcd-ca", type=click.Path(dir_okay=False), metavar="FILE", help="Whom to trust there, PEM.")
@click.option("--etcd-cert", type=click.Path(dir_okay=False), metavar="FILE", help="What to show there, PEM.")
@click.option("--etcd-key", type=click.Path(dir_okay=False), metavar="FILE", help="Its key, PEM.")
@click.option("--flush-interval", type=Duration(), metavar="TIME", help="Longest time between two flushes.  [500ms]")
@click.option("--unit-memory", type=Size(), metavar="SIZE", help="Queue units kept in memory.  [64M]")
@click.option("--populate", type=Size(), metavar="SIZE", help="Log made present ahead of writers.  [16M]")
@table_options
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Form of the events on stderr.")
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
    command = daemon_command(place, **given)
    command += ["--origins", json.dumps(origins_of(click.get_current_context()))]
    if detach:
        return _serve_in_background(call, place, command, log_file)
    sys.stdout.flush()
    if call.terminal.structured:
        _announce_from_child(call, place, command)
    elif call.style.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    replace_by_daemon(command)


def daemon_command(place: Place, **given: Any) -> list[str]:
    """Return the words that start the daemon with these options of `shmq serve`."""
    file_bytes = given["file_size"]
    if file_bytes is not None and (file_bytes < FILE_BYTES_MIN or file_bytes % FILE_BYTES_MULTIPLE):
        raise errors.UsageError(
            f"a CommitLog file cannot have {file_bytes} bytes",
            hint=f"--file-size takes multiples of {FILE_BYTES_MULTIPLE}, at least {FILE_BYTES_MIN}; 1G is RocketMQ's",
        )
    store = check_store_path(absolute_path(given["store"]) if given["store"] else default_store(place.broker_name))
    if given["metrics"] is not None:
        given["metrics"] = _on_loopback(given["metrics"])
    command = [sys.executable, "-P", "-m", "shmq.daemon", "serve", "--name", place.broker_name]
    command += ["--runtime-dir", str(place.runtime_dir), "--store", str(store)]
    if given["flush_interval"] is not None:
        command += ["--flush-interval-ms", str(round(1000 * given["flush_interval"]))]
    for option, name in (*_RENAMED, *((name.replace("_", "-"), name) for name in _PASSED_ON)):
        if given[name] is not None:
            command += [f"--{option}", str(given[name])]
    for name in _FILES:
        if given[name] is not None:
            command += [f"--{name.replace('_', '-')}", str(absolute_path(given[name]))]
    return command + [f"--{name.replace('_', '-')}" for name in _FLAGS if given[name]]


_RENAMED = (("file-bytes", "file_size"), ("unit-memory-bytes", "unit_memory"), ("populate-bytes", "populate"))
_PASSED_ON = (
    *(f"{name}_max" for name in _TABLES),
    *("delay_levels", "timer_max_delay", "retention_hours", "delete_hour", "when_full"),
    *("disk_warn_percent", "disk_force_percent", "disk_refuse_percent", "accept_loss"),
    *("flush", "verify_reads", "segments", "default_queues", "log_format", "listen", "nameserver_listen", "nameserver"),
    *("advertise", "cluster", "bridges", "tcp_connections_max", "address_connections_max", "tls_mode", "metrics"),
    *("role", "in_sync_min", "master", "master_ha", "ha_listen", "ha_allow", "etcd"),
)
_FILES = ("acl", "tls_cert", "tls_key", "nameserver_ca", "etcd_ca", "etcd_cert", "etcd_key", "ha_secret_file")
_FLAGS = ("no_auto_create", "no_tcp", "insecure")


def _on_loopback(address: str) -> str:
    return f"127.0.0.1:{address}" if address.isdecimal() else address


def place_named(name: str, runtime_dir: str | None) -> Place:
    """Return where a broker of this name is, or would be."""
    if runtime_dir is not None:
        return checked(Place(check_broker_name(name), absolute_path(runtime_dir)))
    return place_of(f"shmq://{check_broker_name(name)}")


def _announce_from_child(call: Call, place: Place, command: list[str]) -> None:
    """Fork twice, so that nobody has to wait for the child that speaks for the daemon this process becomes."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command += ["--json", "--ready-fd", str(writing)]
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.close(writing)
            announcement = read_announcement(reading, READY_TIMEOUT)
            if announcement is not None:
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
        with open(path, "ab") as log, executing(command[0]):
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
    if announcement is not None:
        return _announce(call, place, announcement)
    if process.poll() is None:
        raise errors.RequestTimeout(
            f'broker "{place.broker_name}" (pid {process.pid}) is not ready yet', hint=f"it goes on; see {path}"
        )
    raise errors.BrokerNotRunning(
        f'broker "{place.broker_name}" ended with status {process.returncode} before it was ready', hint=f"see {path}"
    )


def read_announcement(descriptor: int, timeout: float) -> dict[str, Any] | None:
    """Return the one line the daemon says about its start; None when it says nothing in time, or ends without."""
    deadline = time.monotonic() + timeout
    line = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        piece = os.read(descriptor, 65536) if ready else b""
        if not piece:
            return None
        line += piece
    document = json.loads(line)
    return document if isinstance(document, dict) else None


def _announce(call: Call, place: Place, announcement: dict[str, Any]) -> int:
    """Tell in our words what the daemon said; return the exit status."""
    if not announcement.get("ready"):
        return call.terminal.fail(_error_of(announcement), status=int(announcement["exit"]))
    document = {
        "broker": place.broker_name,
        "url": f"shmq://{place.runtime_dir}",
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
    named = place_of(f"shmq://{place.broker_name}")
    return f" -u shmq://{place.broker_name}" if place == named else f" -u shmq://{place.runtime_dir}"


def _error_of(announcement: dict[str, Any]) -> errors.ShmqError:
    """Return an error of the kind the daemon named, so that its type and code are what a caller expects."""
    kind = getattr(errors, str(announcement.get("kind")), errors.ShmqError)
    message, hint = str(announcement["error"]), str(announcement.get("hint", ""))
    try:
        error = kind(message, hint=hint)
    except TypeError:  # a class that wants to know more than was said
        error = errors.StoreError(message, hint=hint)
    return error if isinstance(error, errors.ShmqError) else errors.ShmqError(message, hint=hint)
