"""`shmq store`: the group of commands about the files of a store."""

from __future__ import annotations

import click

from shmq.tools.command import Group
from shmq.tools.store.scrub_command import scrub


@click.group(cls=Group)
def store() -> None:
    """Check the files of a broker's store."""


store.add_command(scrub)
