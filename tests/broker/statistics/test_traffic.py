"""Statistics out of the tables: what moved, by which client, and what belongs to none."""

from typing import Any

import pytest

from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.statistics.statistics import Statistics
from shmq.daemon.broker.statistics.traffic import DayTotals, Traffic
from shmq.daemon.broker.tables import QueueBounds

SECOND = 1000


class Scene:
    """One topic with two queues, one group, and time."""

    def __init__(self, tables: Any) -> None:
        self.tables = tables
        tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
        self.queues = tables.topic("orders").queues
        self.group = tables.group_put("billing")
        self.statistics = Statistics()
        self.traffic = Traffic(tables, QueueIndex(tables), self.statistics, cluster="c")
        self.now_ms = 0
        self.tick()

    def tick(self) -> None:
        self.now_ms += SECOND
        self.traffic.tick(self.now_ms)

    def put(self, queue_id: int, end: int, size: int) -> None:
        self.tables.bounds[self.queues[queue_id]] = QueueBounds(0, end)
        self.tables.queue_bytes[self.queues[queue_id]] = size

    def commit(self, queue_id: int, committed: int) -> None:
        slot = self.tables.offset_put(self.group, self.queues[queue_id])
        self.tables.set_committed(slot, committed)

    def total(self, name: str, key: str) -> int:
        return self.statistics.total(name, key)


@pytest.fixture
def scene(tables: Any) -> Scene:
    return Scene(tables)


def test_puts_are_counted_by_topic_in_messages_and_bytes(scene: Scene) -> None:
    scene.put(0, 5, 700)
    scene.put(1, 1, 100)
    scene.tick()
    scene.put(1, 3, 300)
    scene.tick()
    assert scene.total("TOPIC_PUT_NUMS", "orders") == 8
    assert scene.total("TOPIC_PUT_SIZE", "orders") == 1000
    assert scene.total("BROKER_PUT_NUMS", "c") == 8


def test_gets_are_what_a_groups_offset_moved(scene: Scene) -> None:
    scene.put(0, 100, 10_000)
    scene.commit(0, 0)
    scene.tick()
    scene.commit(0, 40)
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 40
    assert scene.total("GROUP_GET_SIZE", "orders@billing") == 4000
    assert scene.total("BROKER_GET_NUMS", "c") == 40


def test_a_start_that_is_written_down_and_a_step_back_are_no_gets(scene: Scene) -> None:
    scene.commit(0, 50)
    scene.tick()
    scene.commit(0, 20)
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 0


def test_the_first_commit_of_a_tcp_client_counts_from_where_it_began_to_pull(scene: Scene) -> None:
    scene.put(0, 100, 10_000)
    scene.put(1, 100, 10_000)
    scene.traffic.started(scene.group, scene.queues[0], 90)
    scene.traffic.started(scene.group, scene.queues[0], 95)
    scene.commit(0, 100)
    scene.commit(1, 100)  # from an unknown place
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 10
    assert scene.total("GROUP_GET_SIZE", "orders@billing") == 1000
    scene.commit(0, 0)
    scene.tick()
    scene.commit(0, 3)
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 13


def test_the_first_commit_of_a_local_member_counts_no_more_than_its_process_received(scene: Scene) -> None:
    for queue_id in (0, 1):
        scene.put(queue_id, 100, 10_000)
        slot = scene.tables.offset_put(scene.group, scene.queues[queue_id])
        scene.tables.owners[slot] = 5
    scene.tables.received_counts[5] = 40
    scene.tick()
    scene.tables.received_counts[5] = 67
    scene.commit(0, 20)  # from the beginning
    scene.commit(1, 100)  # from near the end
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 27
    scene.tables.received_counts[5] = 70  # of another process, which has the slot by now
    scene.tables.generations[5] += 1
    third = scene.tables.group_put("third")
    slot = scene.tables.offset_put(third, scene.queues[0])
    scene.tables.owners[slot] = 5
    scene.tables.set_committed(slot, 100)
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@third") == 70


def test_starts_of_groups_that_never_commit_do_not_pile_up(scene: Scene) -> None:
    for queue in range(30_000):
        scene.traffic.started(scene.group, queue, 7)
    assert len(scene.traffic._starts) <= 10_001


def test_an_offset_beyond_the_end_counts_up_to_the_end(scene: Scene) -> None:
    scene.put(0, 100, 10_000)
    scene.commit(0, 90)
    scene.tick()
    scene.commit(0, (1 << 63) - 1)
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 10


def test_what_was_there_before_the_first_look_is_not_counted(tables: Any) -> None:
    tables.topic_put("old", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    tables.bounds[tables.topic("old").queues[0]] = QueueBounds(0, 1000)
    scene = Scene(tables)
    scene.tick()
    assert scene.total("TOPIC_PUT_NUMS", "old") == 0


def test_a_topic_that_is_gone_counts_no_more(scene: Scene) -> None:
    scene.put(0, 5, 500)
    scene.tables.topic_delete("orders")
    scene.tick()
    assert scene.total("TOPIC_PUT_NUMS", "orders") == 0


def test_a_topic_beyond_the_first_block_of_words_is_seen(scene: Scene) -> None:
    scene.tables.topic_put("wide", read_queues=600, write_queues=600, perm=6, flags=0, kind=0)
    last = scene.tables.topic("wide").queues[-1]
    scene.tick()
    scene.tables.bounds[last] = QueueBounds(0, 7)
    scene.tick()
    assert scene.total("TOPIC_PUT_NUMS", "wide") == 7


def test_a_group_that_took_a_deleted_ones_place_counts_for_itself(scene: Scene) -> None:
    scene.put(0, 10, 1000)
    scene.commit(0, 1)
    scene.tick()
    scene.commit(0, 2)
    scene.tick()
    scene.tables.group_delete("billing")
    scene.tables.all_groups["later"] = scene.group
    scene.tick()
    scene.commit(0, 3)
    scene.tick()
    scene.commit(0, 5)
    scene.tick()
    assert scene.total("GROUP_GET_NUMS", "orders@billing") == 1
    assert scene.total("GROUP_GET_NUMS", "orders@later") == 2


def test_totals_remember_both_midnights() -> None:
    totals = DayTotals()
    totals.see(100, 7)
    totals.see(150, 7)
    totals.see(160, 8)
    totals.see(300, 9)
    assert (totals.yesterday_morning, totals.today_morning, totals.now) == (150, 160, 300)
    totals.see(310, 8)
    assert totals.today_morning == 160, "a clock that was set back makes no day of its own"
