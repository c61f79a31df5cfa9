"""What senders know of topics: two threads meet where the tables have just changed, and neither keeps what was."""

from collections.abc import Callable, Iterator

import pytest

import shmq
from shmq.client.table_cache import TableCache
from shmq.testing import Broker
from tests.interruption import met_everywhere


class Tables:
    """A number in tables that change."""

    def __init__(self) -> None:
        self.table_version = self.number = 1

    def change(self) -> None:
        self.number += 1
        self.table_version += 1


class ReadersMeet:
    """A thread reads; another one changes the tables, and reads too."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.cache: TableCache[int] = TableCache()

    def action(self) -> None:
        known = self.cache.of(self.tables)
        if "orders" not in known:
            number = self.tables.number
            known["orders"] = number

    def other(self) -> None:
        self.tables.change()
        self.action()

    def check(self) -> None:
        self.action()
        assert self.cache.of(self.tables)["orders"] == self.tables.number


def test_what_was_read_before_a_change_does_not_count_behind_it() -> None:
    assert met_everywhere(ReadersMeet, before="opcode") > 20


def test_what_is_known_is_read_once() -> None:
    tables, cache = Tables(), TableCache[int]()
    known = cache.of(tables)
    assert cache.of(tables) is known
    tables.change()
    assert cache.of(tables) is not known


def test_tables_of_the_next_generation_are_others_whatever_their_version_is() -> None:
    cache = TableCache[int]()
    cache.of(Tables())["orders"] = 1
    assert not cache.of(Tables())


@pytest.fixture(scope="module")
def mq() -> Iterator[shmq.Connection]:
    with Broker() as broker, broker.connect() as connection:
        connection.admin.create_topic("orders", queues=2)
        yield connection


class ChangeMeetsUse:
    """A topic is changed, and another thread uses it as it is then, while one uses it as it was."""

    def __init__(self, mq: shmq.Connection, use: Callable[[], object], seen: Callable[[], object]) -> None:
        self.change = mq.admin.update_topic
        self.use, self.seen = use, seen
        self.has_changed = False
        self.change("orders", queues=4, flush="async")

    def action(self) -> object:
        return self.use()

    def other(self) -> None:
        self.change("orders", queues=2, flush="sync")
        self.has_changed = True
        self.use()

    def check(self) -> None:
        if self.has_changed:  # else the action was over before
            assert self.seen() == 2


def test_a_topic_that_is_flushed_from_now_on_is_waited_for_by_every_sender(mq: shmq.Connection) -> None:
    wire = mq._local().wire

    def waits() -> int:
        return 1 + wire.counts_on_disk("orders")

    assert met_everywhere(lambda: ChangeMeetsUse(mq, waits, waits), before="opcode") > 20


def test_no_transaction_is_for_a_queue_that_has_gone(mq: shmq.Connection) -> None:
    transactions = mq._local().transactions

    def queue() -> int:
        return transactions._queue("orders", None, None)  # type: ignore[attr-defined, no-any-return]

    def queues() -> int:
        return len({queue() for _ in range(8)})

    assert met_everywhere(lambda: ChangeMeetsUse(mq, queue, queues), before="opcode") > 20


def test_no_delayed_message_is_for_a_queue_that_has_gone(mq: shmq.Connection) -> None:
    def queue() -> int:
        return mq.send("orders", b"x", delay_level=3).queue_id

    def queues() -> int:
        return len({queue() for _ in range(8)})

    assert met_everywhere(lambda: ChangeMeetsUse(mq, queue, queues)) > 20
