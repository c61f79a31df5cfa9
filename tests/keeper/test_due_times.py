"""Due times in the units of the schedule topic: what the append writes is what a rebuild from the log writes."""

from collections.abc import Callable
from typing import Any

import pytest

from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.shm.core import UNIT_DELAY_BASE, BrokerTables, KeeperStore
from shmq.shm.unit import unpack_unit

StartKeeper = Callable[..., Any]
LEVELS = DelayLevels()


@pytest.mark.parametrize("body_bytes", [10, 100_000])
def test_i8_a_rebuilt_queue_is_byte_for_byte_the_appended_one(start_keeper: StartKeeper, body_bytes: int) -> None:
    running = start_keeper()
    BrokerTables(running.store).topic_put(SCHEDULE_TOPIC, read_queues=18, write_queues=18)
    stored = {}
    for level in range(1, 19):
        code = UNIT_DELAY_BASE + LEVELS.delay_ms(level)
        text = b"TAGS\x01t\x02DELAY\x01%d\x02" % level
        fields = {"queue_id": level - 1, "tag_code": code}
        stored[level] = running._producer.append(SCHEDULE_TOPIC, bytes(body_bytes), text, **fields)
    appended = {
        level: KeeperStore(running.store).units_read(running.queue_index(SCHEDULE_TOPIC, level - 1), 0, 1)
        for level in stored
    }
    for level, (_, position, store_ms, _) in stored.items():
        log_position, _, code = unpack_unit(appended[level])
        assert (log_position, code) == (position, store_ms + LEVELS.delay_ms(level))
    running.end()
    running = start_keeper()
    for level, unit in appended.items():
        path = running.root / "consumequeue" / SCHEDULE_TOPIC / str(level - 1) / f"{0:020d}"
        assert path.read_bytes()[:20] == unit
