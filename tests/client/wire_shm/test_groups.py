"""Taking and leaving queues, against real segments and without a broker."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.client import options
from shmq.client.administration.local_figures import write_offsets
from shmq.client.position import BEGIN, END, Position
from shmq.client.wire import QueueSlot
from shmq.client.wire_shm.groups import ShmShare as Share
from shmq.errors import BrokerNotRunning, ConsumeError
from shmq.shm.core import BrokerTables, KeeperStore, Producer, Reader, Store, process_start
from shmq.shm.segment import SegmentSizes, create_segments, open_store, unlink_segments

FILE_BYTES = 1 << 20
SIZES = SegmentSizes(
    file_bytes=FILE_BYTES, topic_max=16, queue_max=16, frame_max=2048, client_max=4, group_max=4, offset_max=64
)


class World:
    """Segments with one topic of four queues and one group, and members that attach to them."""

    def __init__(self, directory: Path) -> None:
        (directory / "commitlog").mkdir()
        with open(directory / "commitlog" / f"{0:020d}", "wb") as log:
            log.truncate(FILE_BYTES)
        self.instance, self.store = create_segments(f"share-{os.getpid()}", store_path=directory, sizes=SIZES)
        KeeperStore(self.store).set_allocated_end(FILE_BYTES)
        self.topic = BrokerTables(self.store).topic_put("orders", read_queues=4, write_queues=4)
        tables = BrokerTables(self.store)
        group = tables.group_put("billing")
        queues = self.store.topic(self.topic)["queues"]
        self.slots = [QueueSlot(id, index, tables.offset_put(group, index)) for id, index in enumerate(queues)]
        self.producer = Producer(self.store, resolve=self.store.topic_find)
        self.left: list[int] = []

    def register(self, store: Store) -> int:
        tables = BrokerTables(self.store)
        slot = tables.client_put(os.getpid(), process_start(os.getpid()), 3)
        store.use_client(slot, tables.client_generation(slot))
        return slot

    def member(self, start: Position = BEGIN) -> tuple[Share, Reader, Store]:
        store = open_store(self.instance, writable=True)
        self.register(store)
        reader = Reader(store)
        return Share(store=store, reader=reader, topic="orders", start=start, on_left=self.left.append), reader, store

    def send(self, queue_id: int, count: int = 1) -> None:
        for _ in range(count):
            self.producer.send("orders", b"x", queue_id=queue_id)

    def committed(self) -> list[int]:
        return [self.store.offset_get(slot.offset_slot) for slot in self.slots]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    unlink_segments(made.instance)


def held(share: Share) -> list[int]:
    return sorted(slot.queue_id for slot in share.held.values())


def test_free_queues_are_taken_at_once(world: World) -> None:
    share, _, store = world.member()
    share.want(world.slots[:2], world.slots, now=0.0)
    assert not share.step(0.0)
    assert held(share) == [0, 1]
    assert [world.store.offset_owner(slot.offset_slot) for slot in world.slots] == [store.client_slot] * 2 + [-1] * 2


def test_a_queue_is_never_held_by_two(world: World) -> None:
    one, _, _ = world.member()
    two, _, _ = world.member()
    one.want(world.slots, world.slots, 0.0)
    one.step(0.0)
    two.want(world.slots[2:], world.slots, 0.0)
    assert two.step(0.0)
    assert held(two) == []
    one.want(world.slots[:2], world.slots, 0.0)
    assert not one.step(0.0)
    assert not two.step(0.0)
    assert (held(one), held(two)) == ([0, 1], [2, 3])
    assert world.left == [2, 3]


def test_the_queues_of_a_dropped_client_are_free(world: World) -> None:
    one, _, victim = world.member()
    two, _, _ = world.member()
    one.want(world.slots, world.slots, 0.0)
    one.step(0.0)
    two.want(world.slots, world.slots, 0.0)
    assert two.step(0.0)
    BrokerTables(world.store).client_drop(victim.client_slot)
    assert not two.step(0.0)
    assert held(two) == [0, 1, 2, 3]


def test_leaving_waits_for_messages_in_flight(world: World) -> None:
    share, reader, _ = world.member()
    world.send(0, 2)
    share.want(world.slots, world.slots, 0.0)
    share.step(0.0)
    (message,) = reader.poll(1)
    share.want(world.slots[1:], world.slots, now=5.0)
    assert share.step(5.0)
    assert held(share) == [0, 1, 2, 3]
    assert reader.poll(10) == []  # the queue that is being left delivers nothing new
    message.ack()
    assert not share.step(5.0)
    assert held(share) == [1, 2, 3]
    assert world.committed()[0] == 1


def test_leaving_does_not_wait_for_ever(world: World) -> None:
    share, reader, _ = world.member()
    world.send(0)
    share.want(world.slots[:1], world.slots, 0.0)
    share.step(0.0)
    (message,) = reader.poll(1)
    share.want([], world.slots, now=5.0)
    assert share.step(5.0 + options.REVOKE_TIMEOUT - 0.01)
    assert not share.step(5.0 + options.REVOKE_TIMEOUT)
    message.ack()
    assert world.committed()[0] == 0  # it is delivered again, to the next reader


def test_a_queue_wanted_again_while_it_is_left_goes_on_where_it_was(world: World) -> None:
    share, reader, _ = world.member()
    world.send(0, 2)
    share.want(world.slots[:1], world.slots, 0.0)
    share.step(0.0)
    reader.poll(1)
    share.want([], world.slots, 0.0)
    share.step(0.0)
    share.want(world.slots[:1], world.slots, 0.0)
    assert not share.step(0.0)
    assert [message.offset for message in reader.poll(10)] == [1]


def test_a_queue_that_was_paused_stays_so_when_it_is_wanted_again(world: World) -> None:
    share, reader, _ = world.member()
    world.send(0, 2)
    share.want(world.slots[:1], world.slots, 0.0)
    share.step(0.0)
    reader.poll(1)
    share.pause(0, paused=True)
    share.want([], world.slots, 0.0)
    share.step(0.0)
    share.want(world.slots[:1], world.slots, 0.0)
    share.step(0.0)
    assert reader.poll(10) == []
    share.pause(0, paused=False)
    assert len(reader.poll(10)) == 1


@pytest.mark.parametrize(("start", "first"), [(BEGIN, 0), (END, 3)])
def test_a_new_groups_start_is_written_down_for_all_queues_before_anything_is_read(
    world: World, start: Position, first: int
) -> None:
    for queue_id in range(4):
        world.send(queue_id, 3)
    share, _, _ = world.member(start)
    share.want(world.slots[:1], world.slots, 0.0)
    assert world.committed() == [first] * 4


def test_a_group_that_has_offsets_goes_on_there_whatever_start_says(world: World) -> None:
    for queue_id in range(4):
        world.send(queue_id, 3)
    for slot in world.slots:
        world.store.offset_set(slot.offset_slot, 1)
    share, reader, _ = world.member(END)
    share.want(world.slots, world.slots, 0.0)
    share.step(0.0)
    assert sorted(message.offset for message in reader.poll(100)) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_queue_without_an_offset_among_others_is_read_from_its_first_message_after_a_grace(world: World) -> None:
    for slot in world.slots[:3]:
        world.store.offset_set(slot.offset_slot, 0)
    world.send(3, 2)
    share, reader, _ = world.member(END)
    share.want(world.slots, world.slots, now=7.0)
    assert share.step(7.0)
    assert held(share) == [0, 1, 2]
    assert share.step(7.0 + options.UNSET_QUEUE_GRACE - 0.01)
    assert not share.step(7.0 + options.UNSET_QUEUE_GRACE)
    assert [(message.queue_id, message.offset) for message in reader.poll(10)] == [(3, 0), (3, 1)]


def test_an_offset_behind_the_end_of_its_queue_starts_over(world: World) -> None:
    world.send(0, 2)
    for slot in world.slots:
        world.store.offset_set(slot.offset_slot, 99)
    share, reader, _ = world.member()
    share.want(world.slots[:1], world.slots, 0.0)
    share.step(0.0)
    assert len(reader.poll(10)) == 2


def test_retaking_leaves_alone_what_is_still_ours_and_gives_up_what_is_not(world: World) -> None:
    one, reader, store = world.member()
    world.send(0, 2)
    one.want(world.slots[:2], world.slots, 0.0)
    one.step(0.0)
    (message,) = reader.poll(1)
    one.retake()
    message.ack()
    assert world.committed()[0] == 1  # the assignment was not touched, so what it had delivered still counts
    BrokerTables(world.store).client_drop(store.client_slot)
    two, _, _ = world.member()
    two.want(world.slots[1:2], world.slots, 0.0)
    two.step(0.0)
    world.register(store)
    one.retake()
    assert (held(one), held(two)) == ([0], [1])
    assert [message.offset for message in reader.poll(10)] == [1]


def test_a_member_whose_client_slot_is_anothers_by_now_reads_nothing_of_it(world: World) -> None:
    one, reader, store = world.member()
    world.send(0, 3)
    one.want(world.slots, world.slots, 0.0)
    one.step(0.0)
    (message,) = reader.poll(1)
    BrokerTables(world.store).client_drop(store.client_slot)
    two, others, other = world.member()
    assert other.client_slot == store.client_slot
    two.want(world.slots, world.slots, 0.0)
    assert not two.step(0.0)
    assert held(two) == [0, 1, 2, 3]
    message.ack()
    assert world.committed()[0] == 0
    one.want(world.slots, world.slots, 0.0)  # at the next sharing, before it has noticed
    assert held(one) == [] and reader.poll(10) == []
    with pytest.raises(BrokerNotRunning):
        one.step(0.0)
    one.leave_all()
    assert [world.store.offset_owner(slot.offset_slot) for slot in world.slots] == [other.client_slot] * 4
    assert [message.offset for message in others.poll(10)] == [0, 1, 2]
    assert world.register(store) != other.client_slot
    one.want(world.slots, world.slots, 0.0)
    assert one.step(0.0) and held(one) == []
    two.leave_all()
    assert not one.step(0.0)
    assert held(one) == [0, 1, 2, 3]


def test_what_is_held_under_a_slot_that_is_anothers_by_now_is_given_up_when_it_is_retaken(world: World) -> None:
    one, _, store = world.member()
    one.want(world.slots[:2], world.slots, 0.0)
    one.step(0.0)
    BrokerTables(world.store).client_drop(store.client_slot)
    two, _, other = world.member()
    two.want(world.slots[:1], world.slots, 0.0)
    two.step(0.0)
    assert other.client_slot == store.client_slot
    with pytest.raises(BrokerNotRunning):
        one.retake()  # the connection is lost again: its return starts this again
    world.register(store)
    one.retake()
    assert (held(one), held(two)) == ([1], [0])


def test_writing_offsets_is_refused_while_the_client_slot_is_anothers(world: World) -> None:
    _, _, store = world.member()
    BrokerTables(world.store).client_drop(store.client_slot)
    world.member()
    with pytest.raises(BrokerNotRunning):
        write_offsets(store, [(slot.offset_slot, 7) for slot in world.slots], lambda owner: ConsumeError(f"{owner}"))
    assert world.committed() == [-1] * 4


def test_broadcasting_takes_without_asking_and_remembers_where_it_was(world: World) -> None:
    world.send(0, 3)
    slots = [QueueSlot(slot.queue_id, slot.queue_index) for slot in world.slots]
    share, reader, _ = world.member()
    share.want(slots, slots, 0.0)
    assert not share.step(0.0)
    for message in reader.poll(2):
        message.ack()
    share.leave_all()
    assert held(share) == []
    share.want(slots, slots, 0.0)
    share.step(0.0)
    assert [message.offset for message in reader.poll(10)] == [2]
    assert world.committed() == [-1] * 4


@pytest.mark.parametrize("is_to_come", [False, True])
def test_a_broadcasting_member_goes_on_at_the_end_of_a_queue_that_lost_its_last_messages(
    world: World, is_to_come: bool
) -> None:
    world.send(0, 3)
    share, reader, _ = world.member()
    share._is_to_come = lambda _: is_to_come
    share.go_on({world.slots[0].queue_index: 20})
    slots = [slot._replace(offset_slot=-1) for slot in world.slots]
    share.want(slots, slots, 0.0)
    share.step(0.0)
    places = {entry.queue_id: entry.next_offset for entry in reader.assigned()}
    assert places == {0: 20 if is_to_come else 3, 1: 0, 2: 0, 3: 0}, "of a copy the rest comes yet"
