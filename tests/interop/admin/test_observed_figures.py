"""What health shows of a broker is what mqadmin says: the log, topics, a group's progress, its members, the disk."""

import re
from collections.abc import Callable

from shmq.figures.observer import Observer
from shmq.testing import Broker
from tests.tools.shell import until

Mqadmin = Callable[..., str]


def rows(text: str) -> list[list[str]]:
    """The table mqadmin prints, without headings."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_log_topics_groups_and_disk_are_as_mqadmin_says(mqadmin: Mqadmin) -> None:
    with Broker(tcp=True) as broker, broker.connect(name="invoices") as mq, Observer(broker.url) as observer:
        producer = mq.producer()
        for number in range(12):
            producer.send("orders", b"x" * 100, queue_id=number % 4)
        consumer = mq.subscribe("orders", group="billing")
        for _, message in zip(range(5), consumer, strict=False):
            message.ack()
        until(lambda: (look := observer.snapshot().group("billing")) and look.members, "the member to be shown")

        def asked(*words: str) -> list[list[str]]:
            return rows(mqadmin("4", *words, "-n", broker.name_server))

        snapshot = until(
            lambda: (look := observer.snapshot()).log is not None and look.log.flush_behind_bytes == 0 and look,
            "a flush",
        )
        said = {
            fields[0]: fields[2] for fields in asked("brokerStatus", "-b", broker.broker_address) if len(fields) > 2
        }
        log, disk = snapshot.log, snapshot.disk
        assert (int(said["commitLogMinOffset"]), int(said["commitLogMaxOffset"])) == (log.begin, log.end)
        assert (int(said["putMessageTimesTotal"]), int(said["putMessageSizeTotal"])) == (
            log.appended,
            log.appended_bytes,
        )
        assert said["remainHowManyDataToFlush"] == "0"
        assert abs(float(said["commitLogDiskRatio"]) - disk.used_bytes / (disk.used_bytes + disk.free_bytes)) < 0.02

        queues = {int(row[1]): (int(row[2]), int(row[3])) for row in asked("topicStatus", "-t", "orders")}
        group = snapshot.group("billing")
        mine = {queue.queue_id: queue for queue in group.queues if queue.topic == "orders"}
        assert {number: (queue.offset_min, queue.offset_max) for number, queue in mine.items()} == queues
        assert snapshot.topic("orders").messages == sum(last - first for first, last in queues.values()) == 12

        text = mqadmin("4", "consumerProgress", "-g", "billing", "-n", broker.name_server)
        progress = {int(row[2]): row for row in rows(text) if row[0] == "orders"}
        for number, queue in mine.items():
            assert (int(progress[number][3]), int(progress[number][4])) == (queue.offset_max, queue.committed)
        [total] = re.findall(r"Diff Total: (\d+)", text)
        assert int(total) == group.lag == group.ready == 7

        connection = mqadmin("4", "consumerConnection", "-g", "billing", "-n", broker.name_server)
        assert all(member.client_id in connection for member in group.members)
        assert f"{mq.client_id} " in connection and mq.client_id.endswith("@invoices")
