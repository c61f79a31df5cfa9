"""Queries by key, unique key and log position: what is found, how much of it, and what is said when nothing is."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import Found, NewRecord
from shmq.daemon.broker.pulls.query import INDEX_WAIT_MS
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Reply, Wake
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from tests.broker.record_log import RecordLog

ALWAYS = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}


class ListIndex:
    """`shmq.daemon.broker.log.KeyIndex` that finds every record there is, as if all hashes were equal."""

    def __init__(self, log: RecordLog) -> None:
        self.log = log
        self.asked: list[tuple[Any, ...]] = []
        self.pauses = self.steps = 0
        self.wanted_end = self.reached = 0

    def has_reached(self, log_position: int) -> bool:
        return self.reached >= log_position

    def search(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, count: int, oldest_from: int | None = None
    ) -> Iterator[Found | None]:
        self.asked.append((topic, key, begin_ms, end_ms, count))
        for _ in range(self.pauses):
            self.steps += 1
            yield None
        positions = [int.from_bytes(data[28:36], "big") for held in self.log.records.values() for data, _, _ in held]
        if oldest_from is not None:
            positions = sorted(position for position in positions if position >= oldest_from)[:count]
        yield Found(sorted(positions, reverse=True), 4711, 815)


class Admin:
    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables = tables
        self.log = RecordLog(tables)
        self.index = ListIndex(self.log)
        self.broker = Broker(tables, settings, now_ms=0, log=self.log, index=self.index)
        self.broker.connected(1, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911))

    def store(self, topic: str, text: str, body: bytes = b"x") -> tuple[int, bytes]:
        if self.tables.topic(topic) is None:
            self.tables.topic_put(topic, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        position = self.log.append(self.tables.topic(topic), 0, NewRecord(body, text.encode())).log_position
        data = self.log.record_at(position)
        assert data is not None
        return position, data

    def ask(self, code: int, **ext: str) -> Command:
        (reply,) = self.broker.handle(1, Command(code=code, opaque=3, ext=ext), 0)
        assert isinstance(reply, Reply)
        return reply.command

    def query(self, key: str, topic: str = "orders", count: str = "64", **ext: str) -> Command:
        return self.ask(Request.QUERY_MESSAGE, topic=topic, key=key, maxNum=count, **ALWAYS, **ext)


@pytest.fixture
def admin(tables: Any, settings: BrokerSettings) -> Admin:
    return Admin(tables, settings)


def test_a_key_finds_its_messages_in_log_order_and_no_others(admin: Admin) -> None:
    _, first = admin.store("orders", "KEYS\x01a b\x02")
    admin.store("orders", "KEYS\x01ab\x02")
    admin.store("other", "KEYS\x01a\x02")
    _, second = admin.store("orders", "UNIQ_KEY\x01a\x02")
    reply = admin.query("a")
    assert (reply.code, reply.body) == (0, first + second)
    assert reply.ext == {"indexLastUpdateTimestamp": "4711", "indexLastUpdatePhyoffset": "815"}


def test_nothing_found_is_said_as_by_rocketmq(admin: Admin) -> None:
    admin.store("orders", "KEYS\x01a\x02")
    reply = admin.query("none")
    assert (reply.code, reply.remark) == (22, "can not find message, maybe time range not correct")
    assert reply.ext["indexLastUpdatePhyoffset"] == "815"  # something had the same hash
    admin.log.records.clear()
    assert admin.query("none").ext == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


@pytest.mark.parametrize(
    ("count", "unique", "asked"),
    [("1", "", 1), ("64", "", 64), ("1000", "", 64), ("1", "true", 32), ("0", "true", 32), ("9", "false", 9)],
)
def test_how_many_are_looked_for_is_bounded_as_in_rocketmq(admin: Admin, count: str, unique: str, asked: int) -> None:
    admin.query("a", count=count, **({"_UNIQUE_KEY_QUERY": unique} if unique else {}))
    assert admin.index.asked[-1] == ("orders", "a", 0, (1 << 63) - 1, asked)


@pytest.mark.parametrize("count", ["0", "-5"])
def test_who_wants_no_message_gets_none(admin: Admin, count: str) -> None:
    admin.store("orders", "KEYS\x01a\x02")
    assert admin.query("a", count=count).code == 22
    assert admin.index.asked == []


def test_a_time_before_the_epoch_is_the_epoch(admin: Admin) -> None:
    admin.ask(12, topic="orders", key="a", maxNum="1", beginTimestamp="-1000", endTimestamp="5")
    assert admin.index.asked[-1][2:4] == (0, 5)


def test_a_reply_fits_a_frame_whatever_the_messages_weigh(admin: Admin) -> None:
    for _ in range(12):
        admin.store("orders", "KEYS\x01a\x02", bytes(1 << 20))
    assert 3 << 20 < len(admin.query("a").body) < 5 << 20


@pytest.mark.parametrize(
    ("missing", "code"), [("topic", 1), ("key", 22), ("maxNum", 1), ("beginTimestamp", 1), ("endTimestamp", 1)]
)
def test_a_query_without_a_field_finds_nothing_or_is_refused_as_by_rocketmq(
    admin: Admin, missing: str, code: int
) -> None:
    admin.store("orders", "KEYS\x01a\x02")
    fields = {"topic": "orders", "key": "a", "maxNum": "1", **ALWAYS}
    del fields[missing]
    assert admin.ask(12, **fields).code == code


def test_a_message_is_shown_by_its_place(admin: Admin) -> None:
    admin.store("orders", "")
    position, data = admin.store("orders", "KEYS\x01a\x02")
    reply = admin.ask(33, offset=str(position))
    assert (reply.code, reply.body) == (0, data)
    for wrong in (position + 1, -1, 1 << 60):
        reply = admin.ask(33, offset=str(wrong))
        assert (reply.code, reply.remark) == (1, f"can not find message by the offset, {wrong}")


def test_a_long_search_takes_turns_with_other_requests(admin: Admin) -> None:
    _, first = admin.store("orders", "KEYS\x01a\x02")
    admin.index.pauses = 1000
    ext = {"topic": "orders", "key": "a", "maxNum": "9", **ALWAYS}
    effects: list[Effect] = []
    for opaque in (1, 2):
        effects = admin.broker.handle(1, Command(code=Request.QUERY_MESSAGE, opaque=opaque, ext=ext), 0)
        assert [type(effect) for effect in effects] == [Wake]
    answered: list[Command] = []
    turns = 0
    while any(isinstance(effect, Wake) for effect in effects):
        before = admin.index.steps
        assert admin.ask(9999).code != 0  # others are served in between
        effects = admin.broker.woken(turns)
        assert admin.index.steps - before <= 20
        answered += [effect.command for effect in effects if isinstance(effect, Reply)]
        turns += 1
    assert turns >= 100
    assert [(reply.opaque, reply.body) for reply in answered] == [(1, first), (2, first)]
    assert admin.broker.woken(turns) == []


def test_a_search_ends_with_its_connection_and_their_number_is_bounded(admin: Admin) -> None:
    admin.index.pauses = 1 << 30
    ext = {"topic": "orders", "key": "a", "maxNum": "9", **ALWAYS}
    replies = [
        effect.command.code
        for opaque in range(300)
        for effect in admin.broker.handle(1, Command(code=Request.QUERY_MESSAGE, opaque=opaque, ext=ext), 0)
        if isinstance(effect, Reply)
    ]
    assert replies == [2] * 44
    admin.broker.disconnected(1, 0)
    steps = admin.index.steps
    assert admin.broker.woken(0) == [] and admin.index.steps == steps


def test_a_search_waits_until_the_index_has_come_to_the_end_that_the_log_had(admin: Admin) -> None:
    position, data = admin.store("orders", "KEYS\x01a\x02")
    admin.index.wanted_end = position + len(data)
    command = Command(
        code=Request.QUERY_MESSAGE, opaque=3, ext={"topic": "orders", "key": "a", "maxNum": "8", **ALWAYS}
    )
    (wake,) = admin.broker.handle(1, command, 0)
    assert isinstance(wake, Wake)
    assert isinstance(admin.broker.woken(1)[0], Wake) and not admin.index.steps
    admin.index.reached = admin.index.wanted_end
    admin.index.wanted_end += 1000  # others send on, and this search does not wait for them
    (reply,) = admin.broker.woken(2)
    assert isinstance(reply, Reply) and reply.command.body == data


def test_a_search_does_not_wait_for_ever_for_an_index_that_stands_still(admin: Admin) -> None:
    _, data = admin.store("orders", "KEYS\x01a\x02")
    admin.index.wanted_end = 1
    command = Command(
        code=Request.QUERY_MESSAGE, opaque=3, ext={"topic": "orders", "key": "a", "maxNum": "8", **ALWAYS}
    )
    admin.broker.handle(1, command, 0)
    assert not any(isinstance(effect, Reply) for effect in admin.broker.woken(INDEX_WAIT_MS - 1))
    (reply,) = admin.broker.woken(INDEX_WAIT_MS)
    assert isinstance(reply, Reply) and reply.command.body == data


def _paged(admin: Admin, count: str) -> list[bytes]:
    """Ask for page after page, from the first position on, and return the records in the order they come."""
    pages, position = [], "0"
    while True:
        reply = admin.query("a", count=count, fromPosition=position)
        pages.append(reply.body)
        following = reply.ext["nextPosition"]
        if following == "0":
            return pages
        assert int(following) > int(position), "it goes on"
        position = following


@pytest.mark.parametrize("count", ["1", "3", "1000"])
def test_pages_from_a_position_on_hold_every_record_once_the_oldest_first(admin: Admin, count: str) -> None:
    wanted = b""
    for number in range(10):
        wanted += admin.store("orders", "KEYS\x01a\x02")[1]
        for _ in range(number % 4):
            admin.store("orders", "KEYS\x01of-an-equal-hash\x02")
    assert b"".join(_paged(admin, count)) == wanted


def test_a_page_ends_before_the_record_that_fits_no_more(admin: Admin) -> None:
    records = [admin.store("orders", "KEYS\x01a\x02", bytes(1 << 20))[1] for _ in range(9)]
    pages = _paged(admin, "1000")
    assert b"".join(pages) == b"".join(records) and len(pages) == 3


def test_who_asks_for_no_page_is_answered_as_rocketmqs_clients_are(admin: Admin) -> None:
    admin.store("orders", "KEYS\x01a\x02")
    assert "nextPosition" not in admin.query("a").ext
