"""Progress that a TCP client reports for its group.

Owns whether it counts. It does not know requests.

    nobody here reads the queue          stored, as in RocketMQ: forward or back
    a local member owns the queue        dropped: it has the newer word, and the client has lost the queue already
    behind the end of the queue          dropped: the group would miss what comes next (RocketMQ stores it)
"""

from shmq.daemon.broker.tables import Tables


def commit_of_remote(tables: Tables, group: int, queue: int, queue_offset: int) -> bool:
    """Store the next offset a group (by index) wants of a queue (by index); say whether it counts."""
    if queue_offset > tables.queue_bounds(queue).offset_max:
        return False
    slot = tables.offset_put(group, queue)
    if tables.offset_owned(slot):
        return False
    tables.set_committed(slot, queue_offset)
    return True
