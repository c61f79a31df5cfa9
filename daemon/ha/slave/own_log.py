"""The log of a slave's host as it is before a master is followed: how it ends, and where it is to begin or to be cut.

    empty, and the master's begins elsewhere   `begin_at`: the keeper makes new segments, whose log begins there
    parts from the master's                    `cut_at`: the keeper cuts it there, and keeps what is cut off

Both are wishes in the store directory; the keeper of the next generation carries them out before anything is served,
unless the slave has joined a master since, or leads: their reason is gone then, and so are they.
"""

from __future__ import annotations

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.log_file import LogFile
from shmq.daemon.ha.meeting import LastRecord
from shmq.errors import StoreError
from shmq.shm.core import KeeperStore, Store
from shmq.shm.unit import Unit, units_of
from shmq.store.layout import StoreLayout
from shmq.store.lineage.beginning import wish_beginning
from shmq.store.lineage.cutting import check_room, wish_cut, withdraw_wishes


class OwnLog:
    """The log of this host, in its segments and in the files of `layout`.

    `master`, where it is asked for, is the address that the event log names.
    """

    def __init__(self, store: Store, layout: StoreLayout, log: EventLog) -> None:
        self._store = store
        self._layout = layout
        self._log = log

    def last_record(self, log_end: int) -> LastRecord | None:
        """The last record that is in a queue; None where there is none."""
        last = Unit(-1, 0, 0)
        for topic in self._store.topics():
            for queue in topic["queues"]:
                place = self._store.queue(queue)
                if place.offset_max > place.offset_min:
                    units = units_of(self._store.units_stored(queue, place.offset_max - 1, 1))
                    last = max(last, *units)
        if not self._store.log_begin <= last.log_position < log_end:
            return None
        file = LogFile(self._store)
        try:
            return LastRecord(last.log_position, file.read(last.log_position, last.record_bytes))
        finally:
            file.close()

    def is_empty(self, log_end: int) -> bool:
        """Whether no record ever was in this log: one whose files retention has taken has queues that go on."""
        if log_end != self._store.log_begin:
            return False
        queues = (queue for topic in self._store.topics() for queue in topic["queues"])
        return log_end == 0 or not any(self._store.queue(queue).offset_max for queue in queues)

    def joined(self) -> None:
        """Let it be as it is: it is the beginning of the log of the master that is followed now. Raises StoreError."""
        withdraw_wishes(self._layout)

    def begin_at(self, position: int, master: str, *, is_stock: bool) -> None:
        """Have the log of this host, which is empty, begin where the master's does."""
        if is_stock:
            raise StoreError(
                f"the master ships its log from {position} to an empty slave, which is its last file: what lies before"
                " it would be missing here",
                hint="copy the master's store directory to this host while that is stopped, then start this slave",
            )
        file_bytes = int(self._store.head["file_bytes"])
        if position % file_bytes:
            raise StoreError(
                f"the master's log begins at {position}, which is no multiple of this slave's file size {file_bytes}",
                hint="start this slave with the master's --file-size",
            )
        wish_beginning(self._layout, position)
        self._log("ha.begins", master=master, log_position=position)
        KeeperStore(self._store).set_retired()  # the keeper ends, and comes again

    def start_over(self, begin: int, epoch: int, master: str) -> None:
        """Give up this log, which lies before where the master's begins, and have it begin there."""
        end = self._store.log_end
        wish_beginning(self._layout, begin)  # alone it does nothing to a log with records
        wish_cut(self._layout, self._store.log_begin, epoch, end=end, drops=True)
        self._log("ha.overtaken", master=master, log_position=begin, bytes=end - self._store.log_begin, epoch=epoch)
        KeeperStore(self._store).set_retired()  # the keeper ends, and comes again

    def cut_at(self, position: int, epoch: int, master: str) -> None:
        """Have the log of this host cut where it parts from the master's; what is cut off is kept.

        Raises:
            StoreError: there is no room to keep it; nothing is given up.
        """
        end = self._store.log_end
        check_room(self._layout, position, end, int(self._store.head["file_bytes"]))
        wish_cut(self._layout, position, epoch, end=end)
        self._log("ha.parted", master=master, log_position=position, bytes=end - position, epoch=epoch)
        KeeperStore(self._store).set_retired()  # as above
