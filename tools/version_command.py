"""`shmq version`: what is installed here. Imports nothing that needs a broker, so it answers at once."""

from __future__ import annotations

import platform

import click

from shmq.tools.command import Call, Command, pass_call
from shmq.version import __version__


@click.command(cls=Command)
@pass_call
def version(call: Call) -> None:
    """Print the version of shmq, its memory layout and its Python."""
    from shmq.tools.memory import layout_abi

    document = {
        "version": __version__,
        "abi": layout_abi(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        abi = document["abi"]
        call.terminal.line(f"shmq {__version__}  memory layout {abi}  Python {document['python']}")
