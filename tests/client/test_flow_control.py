"""A disk above its mark refuses sends with the numbers, over both transports, and consumers go on."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.shm.core import READ_ONLY_DISK_FULL, disk_full_word
from shmq.testing import Broker

Eventually = Callable[..., Any]


def test_a_disk_above_its_mark_refuses_sends_and_consumers_go_on(eventually: Eventually) -> None:
    # Any disk this runs on is more than 1 % full; what is stored before the keeper looks is stored.
    with (
        Broker(tcp=True, disk_refuse_percent=1) as broker,
        broker.connect() as mq,
        shmq.connect(f"rocketmq://{broker.name_server}") as remote,
    ):
        eventually(lambda: mq._local().wire.store.read_only == READ_ONLY_DISK_FULL)
        mq.admin.create_topic("orders", queues=1)
        with pytest.raises(shmq.FlowControl, match=r"is \d+ % full, above 1 % nothing is stored") as local:
            mq.send("orders", b"x")
        assert local.value.retryable and local.value.used > local.value.limit == 1
        # RocketMQ's clients try another broker on this code, and say in the end what the last one said.
        with pytest.raises(shmq.ReadOnlyStore, match=r"service not available now.*is \d+ % full, above 1 %") as tcp:
            remote.send("orders", b"x", timeout=5.0)
        assert tcp.value.code == local.value.code == 14
        with mq.pull_consumer("orders") as consumer:
            assert consumer.poll(1, 0.0) == []
        with mq.subscribe("orders", group="billing") as subscription:
            eventually(lambda: subscription.queues)


def test_the_numbers_of_a_full_disk_fit_their_word() -> None:
    assert disk_full_word(300, 90) & 0xFF == READ_ONLY_DISK_FULL
    assert disk_full_word(300, 90) >> 8 & 0xFF == 255 and disk_full_word(91, 90) >> 16 == 90


def test_every_measured_error_has_its_numbers() -> None:
    for kind in (shmq.BrokerBusy, shmq.SegmentFull, shmq.FlowControl):
        error = kind("what", used=3, limit=2, holder_pid=7)
        assert (error.used, error.limit, error.holder_pid) == (3, 2, 7) and error.retryable
        assert isinstance(error, shmq.MeasuredError) and isinstance(error, shmq.SendError)
