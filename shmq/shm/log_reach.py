"""Checks that the log's files are where the broker has them, before a process maps them.

Segments and log are in two places: a process that shares the memory of a broker's container need not share its file
system.
"""

from __future__ import annotations

import os

from shmq.errors import ForeignNamespace, PermissionDenied
from shmq.shm.instance import Instance


def check_log_is_here(instance: Instance) -> None:
    """Make sure that this process has the directory of the log, before it maps a file of it.

    Raises:
        ForeignNamespace: there is none at the broker's path.
        PermissionDenied: it is not for this user.
    """
    try:
        os.stat(instance.log_directory)
    except FileNotFoundError as error:
        raise ForeignNamespace(
            f'broker "{instance.broker_name}" answers, but this process has no {instance.log_directory}, its log',
            hint=f"mount {instance.store_path} at the same path (docker: --volumes-from <broker>), or connect over TCP",
        ) from error
    except PermissionError as error:
        raise PermissionDenied(
            f"{instance.log_directory} excludes uid {os.geteuid()}",
            hint="run as the broker's user, or join the group shmq: usermod -aG shmq USER",
        ) from error
