"""The role of a broker: what its command line says, unless a switch made it another since.

Each process of the broker looks when it starts. What the supervisor starts does not depend on the role; a broker that
was started as a slave, or with --ha-listen, has the process that can be switched.
"""

from __future__ import annotations

from typing import NamedTuple

from shmq.options.broker import Options
from shmq.shm.access import access_rights
from shmq.store.layout import StoreLayout
from shmq.store.lineage.standing import Role, configured_text, forget_role, load_role, store_role


class Switched(NamedTuple):
    """The options that hold now.

    Attributes:
        configured: what the command line says of the role.
        epoch: that a promotion has given this broker; 0: none has.
    """

    options: Options
    configured: str
    epoch: int = 0


def as_switched(options: Options, *, forgets: bool = False) -> Switched:
    """Return the options as the last switch left them.

    Args:
        forgets: remove the note of a switch that another command line has overruled; one process does.

    Raises:
        ShmqError: there is a note that cannot be believed.
    """
    if options.etcd and not options.group_role:
        options = options.replaced(group_role=options.role)
    configured = configured_of(options)
    layout = StoreLayout(options.store_path, access_rights())
    role = load_role(layout, configured)
    if role is None:
        if forgets and layout.role.exists():
            forget_role(layout)
        return Switched(followed(options, "", "") if options.etcd else options, configured)
    if role.role == "slave":
        return Switched(followed(options, role.master, role.masterHa), configured)
    return Switched(led(options, role.inSyncMin), configured, role.epoch)


def configured_of(options: Options) -> str:
    """Return what the command line of a broker says of its role, to be compared."""
    role = f"elected {options.group_role or options.role}" if options.etcd else options.role
    return configured_text(role, options.master, options.master_ha)


def stand_back(options: Options) -> None:
    """Make an electing broker a slave when it starts as a whole, whatever it was before: it has to be elected.

    Raises:
        ShmqError: there is a note that cannot be believed.
    """
    if not options.etcd:
        return
    layout = StoreLayout(options.store_path, access_rights())
    role = load_role(layout, configured_of(options))
    if role is not None and role.role != "slave":
        store_role(layout, Role(role.configured, "slave"))


def followed(options: Options, master: str, master_ha: str) -> Options:
    """Return the options of this broker as a slave."""
    in_sync_min = options.in_sync_min if options.etcd else 1
    return options.replaced(role="slave", master=master, master_ha=master_ha, in_sync_min=in_sync_min)


def led(options: Options, in_sync_min: int) -> Options:
    """Return the options of this broker as a master.

    Args:
        in_sync_min: of a log whose masters wait for slaves; 0 of another.
    """
    if options.group_role:
        return options.replaced(role=options.group_role, master="", master_ha="")
    if in_sync_min:
        return options.replaced(role="sync-master", master="", master_ha="", in_sync_min=in_sync_min)
    if not options.is_slave:
        return options
    return options.replaced(role="master", master="", master_ha="")
