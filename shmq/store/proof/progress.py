"""Proves the tables in `config/` against the queues of the log, and what waits for its time against its progress.

a table, and its backup                  can be read, and its checksum holds
the offset of a group on a queue         at most the queue's end; below its begin is said, for messages were lost
the progress of a delay level, a timer   likewise; what is behind it is delivered next
a record that waits for its time         says which topic and queue it is for, and when it is due
"""

from __future__ import annotations

from pathlib import Path

from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.errors import CorruptionError
from shmq.store.config import FROM_BACKUP, ConfigFiles
from shmq.store.consumequeue import Queue
from shmq.store.durable import Mark
from shmq.store.layout import StoreLayout
from shmq.store.proof.findings import Findings
from shmq.store.proof.record import WalkedRecord
from shmq.store.table_entries import Tables
from shmq.store.tables import NO_OFFSET_GROUPS
from shmq.timing import CANCELLED_KEY, TIMER_TOPIC, due_ms


def read_tables(layout: StoreLayout, mark: Mark | None, findings: Findings) -> Tables:
    """Read the config directory, and report what is wrong with it."""
    restored: list[str] = []
    config = ConfigFiles(
        layout, log=lambda event, **values: restored.append(values["file"]) if event == FROM_BACKUP else None
    )
    if not layout.config.is_dir():
        findings.add("tables", "config", "the directory is missing")
        return Tables()
    for name, reason in config.find_damaged():
        findings.add("tables", f"config/{name}", reason)
    try:
        tables = config.load()
        config.check_missing(mark.config_files if mark else 0)
    except CorruptionError as error:
        findings.add("tables", "config", str(error))
        return Tables()
    for backup in map(Path, restored if mark else ()):
        if not backup.with_suffix("").exists():
            findings.add("tables", f"config/{backup.stem}", f"it is missing; the next start takes {backup.name}")
    for entry in config.ignored:
        findings.add("tables", "config", f"an entry can mean nothing: {entry}")
    return tables


class ProgressProof:
    """One pass: records that wait for their time, then every offset."""

    def __init__(self, tables: Tables, findings: Findings) -> None:
        self._tables = tables
        self._findings = findings
        self.offsets = 0

    def add(self, record: WalkedRecord) -> None:
        """Take the next whole record of the log."""
        if record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return
        properties, where = record.properties, f"byte {record.position}"
        real = properties.get("REAL_TOPIC"), properties.get("REAL_QID", "")
        if not real[0] or not real[1].lstrip("-").isdigit():
            self._findings.add("timers", where, f"a message of {record.topic} does not say which queue it is for")
        elif record.topic == TIMER_TOPIC and due_ms(properties, record.fields["store_ms"]) is None:
            what = "taking back" if CANCELLED_KEY in properties else "message"
            self._findings.add("timers", where, f"a {what} of {record.topic} does not say when it is due")

    def finish(self, ends: dict[Queue, tuple[int, int]]) -> None:
        """Compare every offset with the first and the last record of its queue.

        Args:
            ends: of every queue that has units or records.
        """
        for (topic, group), queues in sorted(self._tables.offsets.items()):
            for queue_id, word in sorted(queues.items()):
                if group in NO_OFFSET_GROUPS:
                    continue  # due times, not offsets
                self._prove(topic, group, queue_id, word, ends.get((topic, queue_id)))

    def _prove(self, topic: str, group: str, queue_id: int, offset: int, ends: tuple[int, int] | None) -> None:
        self.offsets += 1
        part = "timers" if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else "offsets"
        where = f"{topic}/{queue_id} group {group}"
        first, end = ends or (0, 0)
        if offset > end:
            if topic in self._tables.topics or ends:
                self._findings.add(part, where, f"the group stands at offset {offset}, the queue ends at {end}")
            else:
                self._findings.note(part, where, f"the group stands at offset {offset} of a topic that is gone")
        elif offset < first:
            self._findings.note(part, where, f"the group stands at offset {offset}, the log begins at {first}")
