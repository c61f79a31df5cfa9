"""The daemon's processes, told apart by their first argument: `serve` for people, `keeper` and `bridge` for `serve`.

    python -m shmq.daemon serve [--name NAME] [--store DIRECTORY] …
    python -m shmq.daemon nameserver [--listen HOST:PORT] [--kv FILE] …     a name server without a broker

Only what a process needs is imported in it, because every process of an idle broker costs memory.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import DONE, USAGE, exit_code_of
from shmq.daemon.options import COMMAND_LINE, Options
from shmq.daemon.standard_streams import never_wait
from shmq.daemon.tether import Tether
from shmq.errors import ShmqError
from shmq.shm.descriptors import open_standard
from shmq.version import __version__


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="shmqd", description="The processes of a shmq broker.")
    parser.add_argument("--version", action="version", version=f"shmq {__version__}")
    roles = parser.add_subparsers(dest="role", required=True, parser_class=_Parser)
    serve = roles.add_parser("serve", help="run a broker in the foreground")
    serve.add_argument("--name", dest="broker_name", help="broker name")
    serve.add_argument("--runtime-dir", help="directory of the socket (default: by name)")
    serve.add_argument("--store", help="store directory (default: by name)")
    serve.add_argument("--file-bytes", type=int, help="size of a CommitLog file (default 1 GiB)")
    serve.add_argument("--flush", choices=("async", "sync"))
    serve.add_argument("--verify-reads", choices=("on", "off"))
    serve.add_argument("--flush-interval-ms", type=int)
    serve.add_argument("--segments", choices=("posix", "sysv"))
    serve.add_argument("--no-auto-create", dest="auto_create", action="store_false", default=None)
    serve.add_argument("--default-queues", type=int)
    for name in ("topic", "queue", "frame", "client", "group", "offset"):
        serve.add_argument(f"--{name}-max", type=int)
    serve.add_argument("--lease-ms", type=int, help="how long a stopped process may hold the append lock")
    serve.add_argument("--retention-hours", type=int)
    serve.add_argument("--delete-hour", metavar="HOUR;HOUR", help="hours of the day for expired files (any)")
    serve.add_argument("--when-full", choices=("refuse", "delete-consumed", "delete-oldest"))
    serve.add_argument("--delay-levels", help="RocketMQ's messageDelayLevel")
    serve.add_argument("--timer-max-delay", dest="timer_max_delay_seconds", type=int, help="seconds (3 days)")
    serve.add_argument("--disk-warn-percent", type=int)
    serve.add_argument("--disk-force-percent", type=int)
    serve.add_argument("--disk-refuse-percent", type=int)
    serve.add_argument("--accept-loss", metavar="BEGIN-END,…", help="bytes of the log that may be missing, exactly")
    serve.add_argument("--unit-memory-bytes", type=int)
    serve.add_argument("--populate-bytes", type=int)
    serve.add_argument("--log-format", choices=("text", "json"))
    _add_network(serve)
    serve.add_argument("--options", dest="options_json", help="all settings as one JSON object")
    serve.add_argument("--origins", type=json.loads, help="where settings come from, as a JSON object (command line)")
    serve.add_argument("--check", action="store_true", help="say the settings, or what is wrong with them, as JSON")
    serve.add_argument("--json", action="store_true", help="say that the broker is ready, or why not, as JSON")
    serve.add_argument("--ready-fd", type=int, default=-1, help="say it as JSON on this descriptor")
    _add_nameserver(roles.add_parser("nameserver", help="run a name server in the foreground"))
    for role in ("keeper", "bridge", "exporter", "replication"):
        child = roles.add_parser(role)
        child.add_argument("--options", dest="options_json", required=True)
        child.add_argument("--alive-fd", type=int, default=-1)
        child.add_argument("--ready-fd", type=int, default=-1)
        child.add_argument("--number", type=int, default=0)
    return parser


def _add_network(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--no-tcp", dest="tcp", action="store_false", default=None)
    serve.add_argument("--role", dest="replication_role", choices=("master", "sync-master", "slave"))
    serve.add_argument("--in-sync-min", type=int)
    for name in ("master", "master-ha"):
        serve.add_argument(f"--{name}", metavar="HOST:PORT")
    serve.add_argument("--ha-allow", metavar="CIDR;CIDR")
    serve.add_argument("--ha-secret-file", metavar="FILE")
    serve.add_argument("--etcd", metavar="URL;URL")
    serve.add_argument("--etcd-ca", metavar="FILE")
    serve.add_argument("--etcd-cert", metavar="FILE")
    serve.add_argument("--etcd-key", metavar="FILE")
    for name in ("listen", "nameserver-listen", "advertise", "metrics", "ha-listen"):
        serve.add_argument(f"--{name}", metavar="HOST:PORT")
    serve.add_argument("--nameserver", dest="nameservers", metavar="HOST:PORT;HOST:PORT")
    serve.add_argument("--nameserver-ca", metavar="FILE")
    serve.add_argument("--cluster")
    for name in ("bridges", "tcp-connections-max", "address-connections-max"):
        serve.add_argument(f"--{name}", type=int)
    _add_security(serve)


def _add_security(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--insecure", action="store_true", default=None)
    for name in ("acl", "tls-cert", "tls-key"):
        parser.add_argument(f"--{name}", metavar="FILE")
    parser.add_argument("--tls-mode", choices=("disabled", "permissive", "enforcing"))


def _add_nameserver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", metavar="HOST:PORT", help="where clients and brokers connect (127.0.0.1:9876)")
    parser.add_argument("--kv", metavar="FILE", help="keeps the KV configuration")
    parser.add_argument("--match-addresses", action="store_true")
    _add_security(parser)
    parser.add_argument("--log-format", choices=("text", "json"))
    parser.add_argument("--json", dest="as_json", action="store_true")


def _run_nameserver(arguments: argparse.Namespace) -> int:
    from shmq.daemon.nameserver.process import NameServerOptions, run_nameserver

    given = {name: value for name, value in vars(arguments).items() if name != "role" and value is not None}
    return run_nameserver(NameServerOptions(**given))


def _options_of(arguments: argparse.Namespace) -> Options:
    options = Options.from_json(arguments.options_json) if arguments.options_json else Options()
    given: dict[str, Any] = {
        name: value
        for name, value in vars(arguments).items()
        if name in options.__dataclass_fields__ and value is not None
    }
    if getattr(arguments, "replication_role", None) is not None:  # `role` is which process this is
        given["role"] = arguments.replication_role
    else:
        given.pop("role", None)
    if not options.origins:
        given.setdefault("origins", dict.fromkeys(given, COMMAND_LINE))
    return options.replaced(**given)


def _run_child(role: str, number: int, options: Options, tether: Tether) -> int:
    from shmq.daemon.switched import as_switched

    tether.watch()
    log = EventLog(f"{role}-{number}" if number else role, options.log_format)
    log.own_everything()
    try:
        switched = as_switched(options, forgets=role == "keeper")
    except ShmqError as error:
        log(f"{role}.failed", reason=str(error), hint=error.hint)
        tether.failed(error)
        return exit_code_of(error)
    options = switched.options
    if role == "keeper":
        from shmq.daemon.keeper.process import run_keeper

        return run_keeper(options, tether, log, epoch=switched.epoch)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process of a broker and return its exit status."""
    open_standard()
    arguments = _parser().parse_args(argv)
    if not __debug__:
        sys.exit("shmq's daemon does not run under -O: its assertions guard the store")
    if arguments.role == "nameserver":
        return _run_nameserver(arguments)
    try:
        options = _options_of(arguments)
    except ShmqError as error:
        if getattr(arguments, "check", False):
            print(json.dumps({"error": str(error), "hint": error.hint}))
            return exit_code_of(error)
        print(f"error: {error}" + (f"\n  do    {error.hint}" if error.hint else ""), file=sys.stderr)
        return exit_code_of(error)
    if arguments.role == "serve" and arguments.check:
        print(options.to_json())
        return DONE
    if arguments.role != "serve":
        return _run_child(
            arguments.role,
            arguments.number,
            options,
            Tether(alive_descriptor=arguments.alive_fd, ready_descriptor=arguments.ready_fd),
        )
    from shmq.daemon.announcement import Announcer
    from shmq.daemon.service_manager import ServiceManager
    from shmq.daemon.supervisor import Supervisor

    announcer = Announcer(as_json=arguments.json, descriptor=arguments.ready_fd)
    log = EventLog("supervisor", options.log_format)
    log.own_everything()
    return Supervisor(options, announcer, log, ServiceManager()).run()


if __name__ == "__main__":
    never_wait()
    sys.exit(main())
