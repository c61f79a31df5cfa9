"""A store directory as the next broker would find it: recovered in this process, and read as readers do.

It runs the product's own recovery into segments of its own, without any other process.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from shmq.errors import ShmqError
from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
from shmq.shm.unit import unpack_unit
from shmq.store.layout import StoreLayout
from shmq.store.recovery import OpenFiles, RecoveryReport, recover
from tests.crash.history.history import Place

_OUR_TOPICS = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "SCHEDULE_TOPIC", "rmq_sys_", "TBW102", "TRANS_CHECK", "OFFSET_MOVED")


class RecoveredStore:
    """One recovery of one directory.

    Raises:
        ShmqError: the recovery refuses the directory.
    """

    def __init__(self, root: Path, *, file_bytes: int, queue_max: int = 1024) -> None:
        self.damaged: set[Place] = set()
        self.events: list[tuple[str, dict[str, Any]]] = []
        layout = StoreLayout(root, Access(-1))
        layout.prepare()
        self.files = OpenFiles.of(layout, file_bytes=file_bytes, log=self.log)
        sizes = SegmentSizes(
            file_bytes=file_bytes,
            topic_max=256,
            queue_max=queue_max,
            frame_max=2048,
            client_max=16,
            group_max=256,
            offset_max=1024,
        )
        self._instance, self.store = create_segments(f"test-{secrets.token_hex(4)}", store_path=root, sizes=sizes)
        self.report: RecoveryReport
        try:
            self.tables, self.report = recover(self.store, self.files, default_queues=4, log=self.log)
        except BaseException:
            self.close()
            raise

    def bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        """offset_min and offset_max of every queue of topics of users."""
        found = {}
        for topic in self.store.topics():
            if not topic["name"].startswith(_OUR_TOPICS):
                for queue_id, index in enumerate(topic["queues"]):
                    found[topic["name"], queue_id] = self.store.queue(index)[:2]
        return found

    def messages(self) -> dict[Place, bytes]:
        """Body by place, of everything that the units of users' topics lead to; `damaged` has the other places.

        A record that the cut tore between whole ones has a place, because those behind it are kept.
        """
        found: dict[Place, bytes] = {}
        for (topic, queue_id), (first, end) in self.bounds().items():
            units = self.files.consumequeue.read((topic, queue_id), first, end - first)
            for number in range(len(units) // UNIT_BYTES):
                position, size, _ = unpack_unit(units[number * UNIT_BYTES : (number + 1) * UNIT_BYTES])
                place = (topic, queue_id, first + number)
                try:
                    message = self.store.message_at(position, size)
                except ShmqError:
                    self.damaged.add(place)
                    continue
                if (message.topic, message.queue_id, message.offset) == place:
                    found[place] = bytes(message.body)
                else:
                    self.damaged.add(place)
        return found

    def close(self) -> None:
        """Let go of it as a killed broker does."""
        self.files.close()
        self.store.close()
        unlink_segments(self._instance)

    def log(self, event: str, **values: Any) -> None:
        """Keep an event."""
        self.events.append((event, values))
