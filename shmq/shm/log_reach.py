"""Makes sure that the log's files are where the broker has them, before a process maps them.

Segments and log are in two places: a process that shares the memory of a broker's container need not share its file
system. What lies at the path here may be a directory of this container, or a copy that has just taken the place of the
broker's: that one is back within two looks of the keeper.
"""

from __future__ import annotations

import os
import time

from shmq.errors import ForeignNamespace, PermissionDenied
from shmq.shm.core import Store
from shmq.shm.instance import Instance

BACK_SECONDS, _LOOK_SECONDS = 1.0, 0.02


def hold_log(instance: Instance, store: Store) -> None:
    """Have the mapped segments hold the directory of their log.

    Raises:
        ForeignNamespace: none, or another one, is at the broker's path.
        PermissionDenied: it is not for this user.
    """
    deadline, directory = time.monotonic() + BACK_SECONDS, instance.log_directory
    while not store.has_log_directory:
        try:
            os.stat(directory)
        except PermissionError as error:
            raise PermissionDenied(
                f"{directory} excludes uid {os.geteuid()}",
                hint="run as the broker's user, or join the group shmq: usermod -aG shmq USER",
            ) from error
        except FileNotFoundError:
            found = f"this process has no {directory}, its log"
        else:
            found = f"{directory} is another directory here than its log"
        if time.monotonic() >= deadline:
            raise ForeignNamespace(
                f'broker "{instance.broker_name}" answers, but {found}',
                hint=f"mount {instance.store_path} at the same path (docker: --volumes-from <broker>), or connect over "
                "TCP; `shmq health` says whether it was moved away",
            )
        time.sleep(_LOOK_SECONDS)
