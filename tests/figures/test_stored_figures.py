"""What a snapshot shows of a broker is what is in its files after it has stopped, read record by record."""

import json
from collections import Counter

from shmq.figures.observer import Observer
from shmq.figures.snapshot import Snapshot
from shmq.shm.core import CoreError, record_decode, record_verify
from shmq.shm.instance import read_instance
from shmq.shm.segment import unlink_segments
from shmq.testing import Broker
from tests.tools.shell import Shell, until

UNIT_BYTES = 20


def test_a_stopped_broker_left_exactly_what_was_shown() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            producer = mq.producer()
            for number in range(300):
                producer.send(f"topic-{number % 3}", b"x" * number, tag="red", key=str(number))
            consumer = mq.subscribe("topic-1", group="readers")
            for _, message in zip(range(40), consumer, strict=False):
                message.ack()

        def written() -> Snapshot | None:
            with Observer(broker.url) as observer:
                look = observer.snapshot()
            log = look.log
            assert log is not None
            behind = (log.flush_behind_bytes, log.dispatch_behind_bytes, log.units_behind)
            return look if behind == (0, 0, 0) and not look.clients[1:] else None

        snapshot = until(written, "everything to be written")
        Shell(broker.url).ok("stop")

        files = sorted((broker.store / "commitlog").iterdir())
        log = b"".join(path.read_bytes() for path in files)
        count, size, at = Counter[str](), Counter[str](), 0
        while True:
            try:
                record = record_decode(log, at)
            except CoreError:
                break
            assert record_verify(log, at)
            topic = record["topic"].decode() if isinstance(record["topic"], bytes) else record["topic"]
            count[topic] += 1
            size[topic] += record["record_bytes"]
            at += record["record_bytes"]
        assert (at, count.total(), size.total()) == (
            snapshot.log.end,
            snapshot.log.appended,
            snapshot.log.appended_bytes,
        )
        for topic in snapshot.topics:
            assert (topic.stored, topic.size_bytes) == (count[topic.name], size[topic.name]), topic
        units = {
            topic.name: sum(
                -(-len(path.read_bytes().rstrip(b"\0")) // UNIT_BYTES)
                for path in (broker.store / "consumequeue" / topic.name).rglob("0*")
                if path.is_file()
            )
            for topic in snapshot.topics
            if topic.stored
        }
        assert units == {topic.name: topic.messages for topic in snapshot.topics if topic.stored}
        offsets = json.loads((broker.store / "config/consumerOffset.json").read_text())["offsetTable"]
        shown = snapshot.group("readers")
        committed = {str(row.queue_id): row.committed for row in shown.queues if row.topic == "topic-1"}
        assert offsets["topic-1@readers"] == committed
        assert shown.lag == 100 - sum(committed.values()) == 60


def test_what_recovery_found_is_what_is_in_the_files() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            for _ in range(25):
                mq.producer().send("t", b"kept")
        Shell(broker.url).ok("stop")
        broker._process = None
        broker.start()
        with Observer(broker.url) as observer:
            recovery = observer.snapshot("quick").recovery
        assert recovery is not None
        assert (recovery.clean, recovery.damages) == (True, 0)
        assert recovery.age < 60
        broker.kill_daemon()
        instance = read_instance(broker.place.instance_path)
        assert instance is not None
        unlink_segments(instance)  # as if the host had been started again
        [log] = [path for path in sorted((broker.store / "commitlog").iterdir())][:1]
        with open(log, "r+b") as file:
            file.seek(record_decode(log.read_bytes())["record_bytes"] * 3 + 90)
            file.write(b"\xff\xff")  # inside a body
        (broker.store / "shmq.durable").unlink()
        broker.start()
        with Observer(broker.url) as observer:
            recovery = observer.snapshot("quick").recovery
        assert recovery is not None
        assert (recovery.clean, recovery.damages, recovery.records) == (False, 1, 24), broker.log[-2000:]
