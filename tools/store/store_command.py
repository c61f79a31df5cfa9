"""`shmq store`: the group of commands about the files of a store."""

from __future__ import annotations

import click

from shmq.tools.command import Group
from shmq.tools.store.export_command import export
from shmq.tools.store.import_command import import_store
from shmq.tools.store.inspect_command import inspect
from shmq.tools.store.repair_command import repair
from shmq.tools.store.resend_command import resend
from shmq.tools.store.scrub_command import scrub
from shmq.tools.store.verify_command import verify


@click.group(cls=Group)
def store() -> None:
    """Check, look into, copy out, take over and repair the files of a broker's store."""


for command in (verify, inspect, export, resend, import_store, repair, scrub):
    store.add_command(command)
