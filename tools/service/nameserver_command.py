"""`shmq nameserver`: become a name server.

The name server is another program, `python -m shmq.daemon nameserver`. This process becomes it, so that signals, exit
status and messages are its own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from shmq.options.nameserver import OPTIONS
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.service.interpreter import replace_by_daemon
from shmq.tools.service.settings import options_from, settings_given


@click.command(cls=Command)
@options_from(OPTIONS)
@pass_call
def nameserver(call: Call, /, **given: Any) -> int:
    """Run a name server on this host, until Ctrl-C or SIGTERM.

    A broker has one of its own unless it is started with --nameserver.
    """
    settings = json.dumps(settings_given(OPTIONS, given))
    command = [sys.executable, "-P", "-m", "shmq.daemon", "nameserver", "--options", settings]
    if call.terminal.structured:
        command.append("--json")
    elif call.style.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stdout.flush()
    replace_by_daemon(command)
