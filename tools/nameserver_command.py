"""`shmq nameserver`: become a name server.

It does not know what a name server does: that is another program, `python -m shmq.daemon nameserver`, and this process
becomes it, so that signals, exit status and words are its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from shmq.tools.command import Call, Command, pass_call


@click.command(cls=Command)
@click.option("--listen", metavar="HOST:PORT", help="Where brokers and clients connect.  [127.0.0.1:9876]")
@click.option("--kv", type=click.Path(dir_okay=False), metavar="FILE", help="Keeps the KV configuration.  [memory]")
@click.option("--match-addresses", is_flag=True, help="A broker registers only the address it comes from.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without access control.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Form of the events on stderr.")
@pass_call
def nameserver(
    call: Call, *, listen: str | None, kv: str | None, match_addresses: bool, insecure: bool, log_format: str | None
) -> int:
    """Run a name server on this host, until Ctrl-C or SIGTERM.

    A broker has one of its own unless it is started with --nameserver.
    """
    command = [sys.executable, "-P", "-m", "shmq.daemon", "nameserver"]
    for option, value in (("listen", listen), ("log-format", log_format)):
        if value is not None:
            command += [f"--{option}", value]
    if kv is not None:
        command += ["--kv", str(Path(kv).absolute())]
    flags = {"match-addresses": match_addresses, "insecure": insecure, "json": call.terminal.structured}
    command += [f"--{name}" for name, is_given in flags.items() if is_given]
    sys.stdout.flush()
    if call.style.quiet and not call.terminal.structured:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.execv(sys.executable, command)
