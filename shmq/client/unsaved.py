"""Says of a change of topics or groups that it is done, and not on disk yet.

A broker answers such a change when it is in shared memory; its keeper saves it some 0.1 s later. Where the keeper makes
no rounds, the remark of the answer begins with NOT_SAVED_YET: the change is lost if the host crashes before the keeper
works again. The change itself holds, so this is a line of the log `shmq`, which commands print, and no error.
"""

from __future__ import annotations

import logging

from shmq.protocol.codes import NOT_SAVED_YET
from shmq.protocol.command import Command


def warn_of_unsaved(*replies: Command) -> None:
    """Log what brokers say of changes that are done."""
    for reply in replies:
        if reply.remark and reply.remark.startswith(NOT_SAVED_YET):
            logging.getLogger("shmq").warning("%s", reply.remark)
