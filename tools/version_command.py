"""`shmq version`: what is installed here. It imports nothing that needs a broker, so it answers at once."""

from __future__ import annotations

import platform

import click

from shmq.tools.command import Call, Command, pass_call
from shmq.version import __version__


@click.command(cls=Command)
@pass_call
def version(call: Call) -> None:
    """Print the version of shmq, its memory layout and its Python."""
    document = {
        "version": __version__,
        "abi": _layout_abi(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        layout = document["abi"] if document["abi"] is not None else "unknown: the C core is missing"
        call.terminal.line(f"shmq {__version__}  memory layout {layout}  Python {document['python']}")


def _layout_abi() -> int | None:
    try:
        from shmq.shm.core import ABI
    except ImportError:  # the version of a broken installation is what its owner needs to tell
        return None
    return ABI
