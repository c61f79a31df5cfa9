"""What a member takes along to another place: an offset that steps over no message."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import shmq
from shmq.client.following.kept_progress import KeptProgress
from shmq.shm.core import Store
from shmq.testing import Broker

KEY = ("billing", "orders")
_serial = itertools.count()


class Segments:
    """The segments of a connection, counted as those of one generation after the other."""

    def __init__(self, mq: shmq.Connection) -> None:
        self.mq = mq
        self.topic = f"orders-{next(_serial)}"
        self.generation = 1
        self.progress = KeptProgress(lambda: self.store, lambda: self.generation)
        self.send()

    @property
    def store(self) -> Store:
        return self.mq._local().wire.store

    @property
    def index(self) -> int:
        return self.store.queue_index(self.store.topic_find(self.topic), 0)

    def send(self) -> None:
        for number in range(4):
            self.mq.send(self.topic, b"%d" % number)

    def keep(self, offset: int) -> None:
        self.progress.keep(KEY, 0, self.index, offset)

    def take(self, *, here: bool = True) -> int | None:
        return self.progress.take(KEY, 0, self.index, here=here)


@pytest.fixture(scope="module")
def mq() -> Iterator[shmq.Connection]:
    with Broker(default_queues=1) as broker, broker.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def confirming() -> Iterator[shmq.Connection]:
    with (
        Broker(default_queues=1, role="sync-master", tcp=True, ha_listen="127.0.0.1:0") as broker,
        broker.connect(timeout=60.0) as connection,
    ):
        yield connection


def test_an_offset_is_taken_once(mq: shmq.Connection) -> None:
    segments = Segments(mq)
    segments.keep(3)
    assert segments.progress and segments.take() == 3
    assert not segments.progress and segments.take() is None


def test_it_is_none_in_other_segments_whose_log_may_have_been_cut(mq: shmq.Connection) -> None:
    segments = Segments(mq)
    segments.keep(3)
    segments.generation += 1
    assert segments.take() is None


def test_it_is_none_at_a_leader_which_may_lack_what_was_read(mq: shmq.Connection) -> None:
    segments = Segments(mq)
    segments.keep(3)
    assert segments.take(here=False) is None


def test_it_counts_in_other_segments_where_nothing_unconfirmed_was_read(confirming: shmq.Connection) -> None:
    segments = Segments(confirming)
    segments.keep(3)
    segments.generation += 1
    assert segments.take(here=False) == 3


def test_a_topic_that_waits_for_no_slave_is_read_unconfirmed(confirming: shmq.Connection) -> None:
    segments = Segments(confirming)
    confirming.admin.update_topic(segments.topic, flush="async")
    segments.keep(3)
    segments.generation += 1
    assert segments.take() is None


def test_it_is_none_in_a_topic_that_was_made_again(mq: shmq.Connection) -> None:
    segments = Segments(mq)
    segments.keep(3)
    segments.mq.admin.delete_topic(segments.topic)
    segments.send()
    assert segments.take() is None
