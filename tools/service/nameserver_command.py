"""`shmq nameserver`: become a name server.

The name server is another program, `python -m shmq.daemon nameserver`. This process becomes it, so that signals, exit
status and messages are its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from shmq.tools.command import Call, Command, pass_call
from shmq.tools.service.interpreter import replace_by_daemon


@click.command(cls=Command)
@click.option("--listen", metavar="HOST:PORT", help="Where brokers and clients connect.  [127.0.0.1:9876]")
@click.option("--kv", type=click.Path(dir_okay=False), metavar="FILE", help="Keeps the KV configuration.  [memory]")
@click.option("--match-addresses", is_flag=True, help="A broker registers only the address it comes from.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without access control.")
@click.option("--acl", type=click.Path(dir_okay=False), metavar="FILE", help="plain_acl.yml: who may do what.")
@click.option("--tls-cert", type=click.Path(dir_okay=False), metavar="FILE", help="Certificate, PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False), metavar="FILE", help="Its key, PEM.")
@click.option("--tls-mode", type=click.Choice(["disabled", "permissive", "enforcing"]), help="Who must use TLS.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Form of the events on stderr.")
@pass_call
def nameserver(call: Call, /, **given: Any) -> int:
    """Run a name server on this host, until Ctrl-C or SIGTERM.

    A broker has one of its own unless it is started with --nameserver.
    """
    command = [sys.executable, "-P", "-m", "shmq.daemon", "nameserver"]
    for name in _PASSED_ON:
        if given[name] is not None:
            command += [f"--{name.replace('_', '-')}", given[name]]
    for name in _FILES:
        if given[name] is not None:
            command += [f"--{name.replace('_', '-')}", str(Path(given[name]).absolute())]
    command += [f"--{name.replace('_', '-')}" for name in _FLAGS if given[name]]
    if call.terminal.structured:
        command.append("--json")
    elif call.style.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stdout.flush()
    replace_by_daemon(command)


_PASSED_ON = ("listen", "tls_mode", "log_format")
_FILES = ("kv", "acl", "tls_cert", "tls_key")
_FLAGS = ("match_addresses", "insecure")
