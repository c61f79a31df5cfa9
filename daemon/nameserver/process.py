"""A name server in a process of its own.

    listen -> ready, said once -> serve -> SIGTERM, Ctrl-C … -> connections cut -> end

A failure is one line that says what and why, and a status that says what kind it was.
"""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

from shmq.addresses import parse_address
from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.limits import DESCRIPTORS_SPARE, BridgeLimits, connection_limits
from shmq.daemon.bridge.sockets.security import Security
from shmq.daemon.descriptors import raise_descriptor_limit
from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import exit_code_of
from shmq.daemon.nameserver.face import NameServerFace, start_nameserver
from shmq.daemon.nameserver.key_values import Forgetful
from shmq.daemon.nameserver.kv_file import KeyValueFile
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.options.nameserver import NameServerOptions
from shmq.shm.access import UMASK, access_rights
from shmq.version import __version__

_DESCRIPTORS_WANTED = 65536


def run_nameserver(options: NameServerOptions, *, as_json: bool) -> int:
    """Serve until a signal ends it; return the exit status."""
    log = EventLog("nameserver", options.log_format)
    log.own_everything()
    os.umask(UMASK)
    try:
        return run_loop(_serve(options, log, as_json=as_json), log)
    except ShmqError as error:
        status = exit_code_of(error)
        _say_failed(error, status, as_json=as_json)
        return status


async def _serve(options: NameServerOptions, log: EventLog, *, as_json: bool) -> int:
    stop = stop_event()
    limits = connection_limits(raise_descriptor_limit(_DESCRIPTORS_WANTED) - DESCRIPTORS_SPARE)
    security = Security(acl=options.acl, tls_mode=options.tls_mode, tls_cert=options.tls_cert, tls_key=options.tls_key)
    face = _start(options, log, limits, security)
    with contextlib.closing(face):
        _say_ready(str(face.address), options.kv, as_json=as_json)
        while not stop.is_set():
            face.tick()
            security.tick(log)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), limits.tick_interval)
    log("nameserver.stopped")
    return ExitCode.DONE


def _start(options: NameServerOptions, log: EventLog, limits: BridgeLimits, security: Security) -> NameServerFace:
    host, port = parse_address(options.listen, name="listen")
    security.check_exposure([host], log, insecure=options.insecure)
    settings = NameServerSettings(match_addresses=options.match_addresses)
    keeper = KeyValueFile(Path(options.kv), access_rights()) if options.kv else Forgetful()
    return start_nameserver(host, port, log, keeper=keeper, settings=settings, limits=limits, security=security)


def _say_ready(address: str, kv: str, *, as_json: bool) -> None:
    if as_json:
        _print(json.dumps({"nameserver": address, "pid": os.getpid(), "kv": kv or None}))
        return
    _print(
        f"shmq {__version__}  name server  pid {os.getpid()}\n"
        f"  listens   {address}\n"
        f"  keeps     {kv or 'nothing: the KV configuration ends with it (--kv FILE)'}\n"
        f"ready – brokers: shmq serve --nameserver {address}    clients: namesrvAddr={address}"
    )


def _say_failed(error: ShmqError, status: int, *, as_json: bool) -> None:
    if as_json:
        document = {"code": error.code, "error": str(error), "hint": error.hint, "type": type(error).__name__}
        text = json.dumps({**document, "retryable": error.retryable, "exit": status})
    else:
        text = f"error: {error}   [exit {status}]" + (f"\n  do    {error.hint}" if error.hint else "")
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _print(text: str) -> None:
    """A reader that went away must not end the name server."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
