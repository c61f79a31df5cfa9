"""Opens a daemon process' own counters.

Each process of the daemon counts in a block of its own, in a segment beside the others, so a word has one writer, needs
no lock and outlives the process. A broker that cannot count still serves: then the counts are in private memory, and
the log says why.
"""

from shmq.daemon.event_log import EventLog
from shmq.errors import SegmentError
from shmq.shm.access import access_rights
from shmq.shm.counters import Counters, LooseCounters, counters_name, create_counters, open_counter_writer
from shmq.shm.instance import Instance
from shmq.shm.segment import SHM_DIRECTORY


def make_counters(instance: Instance, log: EventLog, *, bridges: int) -> None:
    """Make the segment for all processes of the broker, unless it is there; the keeper calls this."""
    try:
        create_counters(instance, access_rights(), bridges=bridges)
    except SegmentError as error:
        log("counters.not_made", reason=str(error))


def own_counters(instance: Instance, writer: int, log: EventLog) -> Counters:
    """Return where the calling process counts; see `KEEPER` and `BRIDGE` of `shmq.shm.counters`.

    Its log counts there, too.
    """
    counters = _opened(instance, writer, log)
    log.count_in(counters)
    return counters


def _opened(instance: Instance, writer: int, log: EventLog) -> Counters:
    if not (SHM_DIRECTORY / counters_name(instance)[1:]).exists():
        return LooseCounters()  # the keeper could not make it, and has said so
    try:
        return open_counter_writer(instance, writer)
    except SegmentError as error:
        log("counters.not_opened", reason=str(error))
        return LooseCounters()
