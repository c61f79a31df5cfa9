"""The daemon's processes; the first argument chooses one.

`shmq serve` and `shmq nameserver` become two of them, and the supervisor starts the others.

    python -m shmq.daemon ROLE --options JSON …

    serve         the supervisor of a broker       its settings: `shmq/options/broker.py`
    keeper, bridge, exporter, replication          its children, of the same settings
    nameserver    a name server without a broker   its settings: `shmq/options/nameserver.py`

Only what a process needs is imported in it, because every process of an idle broker costs memory.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import exit_code_of
from shmq.daemon.standard_streams import never_wait
from shmq.daemon.tether import Tether
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.shm.descriptors import open_standard
from shmq.shm.signal_event import ignore_unused_signals

_CHILDREN = ("keeper", "bridge", "exporter", "replication")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m shmq.daemon", epilog="Type shmq serve, or shmq nameserver.")
    parser.add_argument("role", choices=("serve", *_CHILDREN, "nameserver"))
    parser.add_argument("--options", required=True, metavar="JSON", help="all settings that are no defaults")
    parser.add_argument("--json", action="store_true", help="say that it is ready, or why not, as JSON")
    parser.add_argument("--ready-fd", type=int, default=-1, help="say it as JSON on this descriptor")
    parser.add_argument("--alive-fd", type=int, default=-1, help="of a child: ends when its supervisor does")
    parser.add_argument("--go-fd", type=int, default=-1, help="of a spare: begins when this descriptor says so")
    parser.add_argument("--number", type=int, default=0, help="of a bridge")
    parser.add_argument("--lock-fds", type=int, nargs="*", default=[], help="of a keeper: the store's lock")
    return parser


def _waits_for_go(role: str, number: int, descriptor: int) -> bool:
    """Import what a role needs, and wait for the word to begin; False when the supervisor needs it no more."""
    if number:
        import shmq.daemon.bridge.worker_server
    elif role == "bridge":
        import shmq.daemon.primary_bridge
    elif role == "replication":
        import shmq.daemon.ha.elected.process  # noqa: F401
    with open(descriptor, "rb", buffering=0) as pipe:
        return bool(pipe.read(1))


def _run_child(role: str, number: int, lock: Sequence[int], options: Options, tether: Tether) -> int:
    from shmq.daemon.switched import as_switched

    tether.watch()
    log = EventLog(f"{role}-{number}" if number else role, options.log_format)
    log.own_everything()
    try:
        if role == "keeper":
            from shmq.daemon.keeper.live.held_files import put_back_directories

            put_back_directories(options.store_path, lock[1:], log)
        switched = as_switched(options, forgets=role == "keeper")
    except ShmqError as error:
        return tether.failed(error, log, f"{role}.failed")
    options = switched.options
    if role == "keeper":
        from shmq.daemon.keeper.process import run_keeper

        return run_keeper(options, tether, log, epoch=switched.epoch, directories=lock[1:])
    tether.call_on_orphaned(lambda: os.kill(os.getpid(), signal.SIGTERM))
    if role == "exporter":
        from shmq.daemon.exporter import run_exporter

        return run_exporter(options.place, options, tether=tether, log=log)
    if role == "replication":
        if options.etcd:
            from shmq.daemon.ha.elected.process import run_elected

            return run_elected(options.place, switched, tether=tether, log=log)
        from shmq.daemon.ha.process import run_replication

        return run_replication(options.place, switched, tether=tether, log=log)
    if number:
        from shmq.daemon.bridge.worker_server import run_worker

        return run_worker(options.place, options, number, tether=tether, log=log)
    from shmq.daemon.primary_bridge import run_bridge

    return run_bridge(options.place, options, tether=tether, log=log)


def _leave(status: int) -> NoReturn:
    """End at once: the next process waits for this one, and everything is closed but the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process of a broker and return its exit status."""
    open_standard()
    arguments = _parser().parse_args(argv)
    if not __debug__:
        sys.exit("shmq's daemon does not run under -O: its assertions guard the store")
    try:
        if arguments.role == "nameserver":
            from shmq.daemon.nameserver.process import run_nameserver
            from shmq.options.nameserver import NameServerOptions

            return run_nameserver(NameServerOptions.from_json(arguments.options), as_json=arguments.json)
        options = Options.from_json(arguments.options)
    except ShmqError as error:
        print(f"error: {error}" + (f"\n  do    {error.hint}" if error.hint else ""), file=sys.stderr)
        return exit_code_of(error)
    if arguments.go_fd >= 0 and not _waits_for_go(arguments.role, arguments.number, arguments.go_fd):
        return ExitCode.DONE
    if arguments.role != "serve":
        status = _run_child(
            arguments.role,
            arguments.number,
            arguments.lock_fds,
            options,
            Tether(alive_descriptor=arguments.alive_fd, ready_descriptor=arguments.ready_fd),
        )
        if arguments.role in ("bridge", "replication"):
            _leave(status)
        return status
    from shmq.daemon.announcement import Announcer
    from shmq.daemon.service_manager import ServiceManager
    from shmq.daemon.supervisor import Supervisor

    announcer = Announcer(as_json=arguments.json, descriptor=arguments.ready_fd)
    log = EventLog("supervisor", options.log_format)
    log.own_everything()
    return Supervisor(options, announcer, log, ServiceManager()).run()


if __name__ == "__main__":
    never_wait()
    ignore_unused_signals()
    sys.exit(main())
