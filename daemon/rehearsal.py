"""Finds what would fail before a broker writes its first byte: its ports, and the files that protect them.

The keeper makes two log files before the bridges open their ports, 2 GiB as a rule. A start that ended at a port in use
left them behind, so whatever the servers will open is opened here first, and closed again.

    guard taken -> rehearsal: ports, accounts, certificates, name servers -> keeper -> bridges
                         |
                         +-> the start ends with the bridge's own reason, and the store is as it was

Rules: (1) it is rehearsed after the locks are taken, because until then the children of a dead supervisor may hold the
ports; (2) it is done in a fork, so that the supervisor never loads what only servers need; (3) a port may be lost again
before the bridge takes it: then the bridge says so, as it does without any rehearsal.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, NoReturn

from shmq.addresses import parse_address
from shmq.daemon.exit_code import exit_code_of
from shmq.errors import ShmqError
from shmq.options.broker import Options


def rehearse(options: Options) -> dict[str, Any] | None:
    """Return why the servers could not start, as a child would say it; None when nothing speaks against it."""
    if not options.tcp and not options.metrics and not options.replicates:
        return None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _report(options, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    failure: dict[str, Any] | None = json.loads(said) if said else None
    return failure


def _report(options: Options, writing: int) -> NoReturn:
    with contextlib.suppress(BaseException):  # what is wrong with the rehearsal itself is no reason against the start
        try:
            open_once(options)
        except ShmqError as error:
            failure = {
                "message": str(error),
                "kind": type(error).__name__,
                "hint": error.hint,
                "exit_code": exit_code_of(error),
            }
            os.write(writing, json.dumps(failure).encode())
    os._exit(0)


def open_once(options: Options) -> None:
    """Open and close what the servers of a broker will open.

    Raises:
        ShmqError: a port is taken, or a file cannot be used; the same as the server would raise.
    """
    from shmq.daemon.bridge.sockets.tcp_listener import TcpListener, listen_with_vip

    with contextlib.ExitStack() as listeners:

        def listen(address: str, name: str) -> None:
            host, port = parse_address(address, name=name)
            for listener in listen_with_vip(host, port) if name == "listen" else [TcpListener(host, port)]:
                listeners.callback(listener.close)

        if options.tcp:
            _open_security(options)
            listen(options.listen, "listen")
            if options.is_name_server:
                listen(options.nameserver_listen, "nameserver_listen")
        if options.ha_secret_file:
            from shmq.daemon.ha.trust import open_trust

            open_trust(options)
        if options.ha_listen:
            listen(options.ha_listen, "ha_listen")
        if options.metrics:
            from shmq.daemon.exporter import check_metrics_exposure

            check_metrics_exposure(options)
            listen(options.metrics, "metrics")


def _open_security(options: Options) -> None:
    from shmq.daemon.bridge.sockets.security import open_security

    open_security(options, lambda *_words, **_facts: None)  # the bridge itself warns
    if options.nameserver_addresses:
        from shmq.daemon.nameserver.service import check_registration

        check_registration(options)
