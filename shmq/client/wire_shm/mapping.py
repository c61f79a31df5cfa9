"""Mapping the segments of the broker that has just answered, and being counted as attached.

It does not know what they are used for.

Rule: a broker that answers while its segments or its log are not where this process looks has another /dev/shm, IPC
namespace or file system. That is said as such, and at once: who is told to start the broker would look for the fault
where it is not.
"""

from __future__ import annotations

from shmq.client.wire_shm.control_channel import ControlChannel
from shmq.errors import ForeignNamespace, SegmentError
from shmq.shm.core import Store
from shmq.shm.log_reach import check_log_is_here
from shmq.shm.presence import attach_presence
from shmq.shm.segment import are_here, open_store


def map_segments(control: ControlChannel) -> Store:
    """Return the mapped segments of the broker this channel is attached to; this process counts as attached.

    Raises:
        ForeignNamespace: they, or the log's files, are in a namespace that this process does not share.
        SegmentError, PermissionDenied, VersionMismatch: as `open_store`.
    """
    instance = control.attachment.instance
    check_log_is_here(instance)
    try:
        store = open_store(instance, writable=True, uid=control.attachment.broker_uid)
    except SegmentError as error:
        if not control.alive or are_here(instance):
            raise
        raise ForeignNamespace(
            f'broker "{instance.broker_name}" answers, but its segments are not in the shared memory of this process',
            hint="share its IPC namespace and its /dev/shm (docker: --ipc=container:<broker>), or connect over TCP",
        ) from error
    attach_presence(instance)
    return store
