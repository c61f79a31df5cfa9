"""Another program fills the disk: what was acknowledged stays, or a group gets the number of its lost messages."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker

Eventually = Callable[..., Any]

SENT, READ = 1000, 27
FULL = {"disk_warn_percent": 1, "disk_force_percent": 1}  # of any disk a test runs on, more is used


def fill_and_read(broker: Broker, eventually: Eventually) -> None:
    """Send to one queue, let one group read a little and stop, and wait until all of it could be deleted."""
    with broker.connect() as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.subscribe("orders", group="slow", start="begin") as consumer:
            for number in range(SENT):
                mq.send("orders", b"%06d" % number * 300)
            while consumer_position(mq) < READ:
                for message in consumer.receive(max=READ - consumer_position(mq), wait=60):
                    message.ack()
        state = mq._local().wire.store
        eventually(lambda: state.durable_end == state.log_end, "everything is durable")
        eventually(lambda: state.queue(queue_of(mq))[2] == SENT, "every unit is in its file")


def queue_of(mq: shmq.Connection) -> int:
    store = mq._local().wire.store
    return int(store.queue_index(store.topic_find("orders"), 0))


def consumer_position(mq: shmq.Connection) -> int:
    [lag] = mq.admin.groups["slow"].offsets
    return max(0, lag.committed)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(file_bytes=256 << 10) as broker:
        yield broker


def fill_disk(broker: Broker, **settings: Any) -> None:
    """The disk is too full from now on."""
    broker.kill_daemon()
    broker._settings |= {**FULL, **settings}
    broker.restart()


@pytest.mark.slow
def test_a_full_disk_takes_nothing_that_a_group_has_not_consumed(broker: Broker, eventually: Eventually) -> None:
    fill_and_read(broker, eventually)
    fill_disk(broker)
    eventually(lambda: "disk.held" in broker.log, "the keeper has looked for what may go")
    with broker.connect() as mq:
        assert int(mq.admin.groups["slow"].lag) == SENT - READ
        with mq.subscribe("orders", group="slow") as consumer:
            bodies: list[int] = []
            while len(bodies) < SENT - READ:
                for message in consumer.receive(max=100, wait=60):
                    bodies.append(int(bytes(message.view[:6])))
                    message.ack()
        assert bodies == list(range(READ, SENT))
        store = mq._local().wire.store
        eventually(lambda: store.log_begin > 0, "what is consumed goes")
        assert mq.admin.groups["slow"].offsets[0].lost == 0


def lost_by_cleaning(broker: Broker, eventually: Eventually) -> int:
    """Let a broker delete what the group has not read; returns how many messages went."""
    fill_and_read(broker, eventually)
    fill_disk(broker, when_full="delete-oldest")
    with broker.connect() as mq:
        eventually(lambda: mq.admin.groups["slow"].offsets[0].lost > 0, "messages are lost")
        store = mq._local().wire.store
        last = store.log_end - store.log_end % (256 << 10)
        eventually(lambda: store.log_begin == last, "all but the file in use went")
        eventually(lambda: store.units_stored(queue_of(mq), store.queue(queue_of(mq))[0], 1), "the minimum is right")
        [lag] = mq.admin.groups["slow"].offsets
        eventually(
            lambda: mq.admin.groups["slow"].offsets[0].lost == mq.admin.groups["slow"].offsets[0].offset_min - READ
        )
        [lag] = mq.admin.groups["slow"].offsets
        assert lag.behind == SENT - lag.offset_min
        return lag.lost


@pytest.mark.slow
def test_a_group_that_lost_messages_gets_their_number_once(broker: Broker, eventually: Eventually) -> None:
    lost = lost_by_cleaning(broker, eventually)
    with broker.connect() as mq, mq.subscribe("orders", group="slow") as consumer:
        with pytest.raises(
            shmq.OffsetOutOfRange, match=f"deleted {lost} messages, offsets {READ} to {READ + lost - 1}"
        ):
            consumer.receive(wait=60)
        messages = consumer.receive(max=SENT, wait=60)
        assert int(bytes(messages[0].view[:6])) == READ + lost
        for message in messages:
            message.ack()
        [lag] = mq.admin.groups["slow"].offsets
        assert (lag.lost, lag.behind) == (lost, SENT - READ - lost - len(messages))
    with broker.connect() as mq, mq.subscribe("orders", group="slow") as consumer:
        mq.send("orders", b"%06d" % SENT)
        while True:
            [message] = consumer.receive(max=1, wait=60)
            message.ack()
            if int(bytes(message.view[:6])) == SENT:
                break
    health = subprocess.run(
        [sys.executable, "-m", "shmq", "health", "--json", "-u", broker.url],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [each["what"] for each in json.loads(health.stdout)["findings"] if "lost" in each["what"]]
    assert any(f"group slow lost {lost} messages to cleaning" in line and "of orders/0" in line for line in lines), (
        lines
    )


def test_a_listener_goes_on_behind_what_is_lost(broker: Broker, eventually: Eventually) -> None:
    lost = lost_by_cleaning(broker, eventually)
    seen: list[int] = []
    ended = threading.Event()
    with broker.connect() as mq:

        @mq.listener("orders", group="slow")
        def handle(message: shmq.Message) -> None:
            seen.append(int(bytes(message.view[:6])))
            if seen[-1] == SENT - 1:
                ended.set()

        mq.start()
        assert ended.wait(60)
        assert seen == list(range(READ + lost, SENT))
