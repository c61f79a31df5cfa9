"""What a slave takes over of its master's tables: nothing that its log does not tell of yet, and nothing of a master
that it does not follow any more."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.tables import QueueBounds, StoreFacts, committed_of
from shmq.daemon.ha.slave.master_broker import TablesNotTold
from shmq.daemon.ha.slave.master_tables import MasterTables
from shmq.errors import UsageError
from shmq.protocol.body import SubscriptionGroupConfig, TopicConfig
from shmq.protocol.codes import Request
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.protocol.system_topics.table_marks import TablesMark
from shmq.timing import TIMER_COPIES_GROUP, TIMER_GROUP, TIMER_TOPIC
from tests.broker.conftest import MemoryTables
from tests.deadline import DEADLINE_SECONDS, eventually

TOPIC = {"topicName": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


class Master:
    """A broker that says what a test has it say, once it may."""

    def __init__(self) -> None:
        self.log_end, self.offsets = 0, {"orders@billing": {"0": 0}}
        self.topics, self.groups = ["orders"], ["billing"]
        self.is_stock = False
        self.version = 1
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked: list[int] = []
        self.commits: list[dict[str, str]] = []
        self.may_commit = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        decoder = CommandDecoder()
        with connection:
            while data := connection.recv(4096):
                decoder.feed(data)
                while (request := decoder.take()) is not None:
                    self.asked.append(request.code)
                    self.may_answer.wait(DEADLINE_SECONDS)
                    body = json.dumps(self._body(Request(request.code))).encode()
                    ext = {"logEnd": str(self.log_end)}
                    if request.code == Request.GET_ALL_CONSUMER_OFFSET and not self.is_stock:
                        ext["tablesVersion"] = str(self.version)
                    if request.code == Request.UPDATE_CONSUMER_OFFSET:
                        self.commits.append(dict(request.ext))
                        if not self.may_commit:
                            return  # it dies in the middle of it
                    connection.sendall(encode_command(request.reply(ext=ext, body=body)))

    def _body(self, code: Request) -> dict[str, object]:
        if code is Request.GET_ALL_TOPIC_CONFIG:
            table = {name: {**TOPIC, "topicName": name} for name in self.topics}
            said = {"topicConfigTable": table, "dataVersion": {"counter": self.version, "timestamp": 0}}
            return said | ({} if self.is_stock else {"bornPositions": dict.fromkeys(table, 0)})
        if code is Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            return {"subscriptionGroupTable": {name: {"groupName": name} for name in self.groups}}
        if code is Request.GET_ALL_CONSUMER_OFFSET:
            return {"offsetTable": self.offsets}
        return {}


@pytest.fixture
def master() -> Iterator[Master]:
    broker = Master()
    yield broker
    broker.close()


@pytest.fixture
def own() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def tables(master: Master, own: MemoryTables) -> MasterTables:
    return MasterTables(master.address, cast(StoreTables, own))


def reach(own: MemoryTables, log_end: int) -> None:
    own.store_facts = StoreFacts(0, log_end, 0, 0, 0, 0)


def offset_of(own: MemoryTables) -> int:
    topic, group = own.topic("orders"), own.group("billing")
    if topic is None or group is None:
        return -1
    return own.committed(own.offset_put(group, topic.queues[0]))


def mark_of(own: MemoryTables) -> int:
    topic = own.topic(TIMER_TOPIC)
    assert topic is not None
    return committed_of(own, TIMER_COPIES_GROUP, topic.queues[0])


def met(master: Master, own: MemoryTables) -> None:
    tables = MasterTables(master.address, cast(StoreTables, own))
    tables.meet(tables.ask())


def commit(own: MemoryTables, offset: int) -> None:
    """A member of this host acknowledges."""
    topic, group = own.topic("orders"), own.group("billing")
    assert topic is not None and group is not None
    own.set_committed(own.offset_put(group, topic.queues[0]), offset)


def test_an_offset_is_believed_once_the_log_is_here_that_it_tells_of(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.log_end, master.offsets = 1000, {"orders@billing": {"0": 7}}
    tables.copy()
    assert offset_of(own) == -1  # a consumer that pops has its checkpoints below 1000
    tables.settle(999)
    assert offset_of(own) == -1
    tables.settle(1000)
    assert offset_of(own) == 7


@pytest.mark.parametrize(
    ("has_words", "mark", "noted"),
    [(True, None, 700), (True, 0, 700), (True, 300, 300), (True, 900, 700), (False, 0, -1)],
)
def test_copies_of_timed_messages_that_an_answer_does_not_tell_of_are_looked_for_from_there_on(
    master: Master, own: MemoryTables, tables: MasterTables, has_words: bool, mark: int | None, noted: int
) -> None:
    master.topics, master.log_end = ["orders", TIMER_TOPIC], 1000
    master.offsets = {f"{TIMER_TOPIC}@{TIMER_GROUP}": {"0": 5}} if has_words else {}
    if mark is not None:
        master.offsets[f"{TIMER_TOPIC}@{TIMER_COPIES_GROUP}"] = {"0": mark}
    reach(own, 700)
    tables.copy()
    reach(own, 1000)
    tables.settle(1000)
    assert mark_of(own) == noted


def test_the_words_of_a_master_of_before_tell_of_no_copies_of_the_next_one(master: Master, own: MemoryTables) -> None:
    own.topic_put(TIMER_TOPIC, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    reach(own, 400)
    met(master, own)
    assert mark_of(own) == -1  # it never made one
    topic = own.topic(TIMER_TOPIC)
    assert topic is not None
    slot = own.offset_put(own.group_put(TIMER_COPIES_GROUP), topic.queues[0])
    for before, after in ((0, 400), (300, 300)):
        own.set_committed(slot, before)
        met(master, own)
        assert mark_of(own) == after


def test_a_slave_that_is_always_behind_gets_offsets_all_the_same(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.log_end, master.offsets = 1000, {"orders@billing": {"0": 7}}
    tables.copy()
    master.log_end, master.offsets = 2000, {"orders@billing": {"0": 9}}
    tables.copy_offsets()
    reach(own, 1500)
    tables.settle(1500)
    assert offset_of(own) == 7
    tables.copy_offsets()
    reach(own, 2000)
    tables.settle(2000)
    assert offset_of(own) == 9


def test_a_master_whose_log_is_shorter_than_it_was_is_believed(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.log_end = 1000
    tables.copy()
    master.log_end, master.offsets = 500, {"orders@billing": {"0": 3}}
    tables.copy_offsets()
    tables.settle(500)
    assert offset_of(own) == 3


@pytest.mark.parametrize("is_stock", [False, True])
def test_a_master_of_ours_says_when_its_topics_or_groups_have_changed(
    master: Master, own: MemoryTables, tables: MasterTables, is_stock: bool
) -> None:
    master.is_stock = is_stock
    tables.meet(tables.ask())
    tables.copy_offsets()
    assert not tables.are_old
    master.version, master.topics = 2, ["orders", "new"]
    tables.copy_offsets()
    assert tables.are_old is not is_stock
    tables.copy()
    assert not tables.are_old and own.topic("new") is not None


def test_an_offset_that_is_set_back_at_the_master_is_set_back_here(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    for offset in (7, 9, 3, 5, 0, 2):
        master.offsets = {"orders@billing": {"0": offset}}
        tables.copy_offsets() if own.all_topics else tables.meet(tables.ask())
        assert offset_of(own) == offset


def test_an_offset_that_was_committed_here_stays_until_the_master_is_as_far(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    tables.meet(tables.ask())
    commit(own, 9)
    for told, is_here in ((8, 9), (3, 9), (9, 9), (4, 4)):
        master.offsets = {"orders@billing": {"0": told}}
        tables.copy_offsets()
        assert offset_of(own) == is_here, told


def test_the_first_answer_of_a_master_that_comes_again_sets_no_offset_back(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.offsets = {"orders@billing": {"0": 7}}
    tables.meet(tables.ask())
    master.offsets = {"orders@billing": {"0": 3}}  # its host may have lost the last ones
    tables.meet(tables.ask())
    tables.copy_offsets()
    assert offset_of(own) == 7
    master.offsets = {"orders@billing": {"0": 8}}
    tables.copy_offsets()
    master.offsets = {"orders@billing": {"0": 2}}
    tables.copy_offsets()
    assert offset_of(own) == 2


def test_a_master_that_comes_again_hears_of_what_was_committed_here_meanwhile(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    tables.meet(tables.ask())
    tables.lost()
    commit(own, 9)
    master.may_commit = False
    with pytest.raises(TablesNotTold):
        tables.meet(tables.ask())
    tables.lost()
    master.may_commit, said = True, master.commits
    tables.meet(tables.ask())
    kept = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "9", "onlyForward": "true"}
    assert said == [kept, kept] and offset_of(own) == 9
    tables.lost()
    tables.meet(tables.ask())
    assert said == [kept, kept]  # once


def test_a_topic_that_the_master_names_no_more_is_deleted_once_its_log_is_here(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.topics = ["orders", "returns", "%RETRY%billing+returns"]
    tables.meet(tables.ask())
    for name in ("%RETRY%audit", "%DLQ%audit", "SCHEDULE_TOPIC_XXXX"):  # this host's own
        own.topic_put(name, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    master.log_end, master.topics = 1000, ["orders"]
    tables.copy()
    assert tables.settle(999) == [] and own.topic("returns") is not None
    master.log_end = 2000
    tables.copy()  # a slave that is always behind
    assert tables.settle(1000) == ["returns"] and tables.settle(1000) == []
    assert sorted(own.all_topics) == ["%DLQ%audit", "%RETRY%audit", "SCHEDULE_TOPIC_XXXX", "orders"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_topic_with_a_record_behind_what_the_master_spoke_of_was_made_again(
    master: Master, own: MemoryTables, tables: MasterTables, count: int
) -> None:
    master.topics = ["orders", "returns"]
    tables.meet(tables.ask())
    topic = own.topic("returns")
    assert topic is not None
    own.bounds[topic.queues[0]] = QueueBounds(0, count)  # records at 0 and 1000
    master.log_end, master.topics = 1000, ["orders"]
    tables.copy()
    assert tables.settle(2000) == (["returns"] if count == 1 else [])
    tables.copy()
    assert (own.topic("returns") is None) == (count == 1)


@pytest.mark.parametrize("says_more", ["named again", "stock", "another connection"])
def test_a_topic_that_is_named_again_or_that_no_master_of_ours_speaks_of_stays(
    master: Master, own: MemoryTables, tables: MasterTables, says_more: str
) -> None:
    master.topics = ["orders", "returns"]
    tables.meet(tables.ask())
    master.log_end, master.topics, master.is_stock = 1000, ["orders"], says_more == "stock"
    tables.copy()
    master.topics = ["orders", "returns"]
    if says_more == "named again":
        tables.copy()
    elif says_more == "another connection":
        tables.meet(tables.ask())
    assert tables.settle(1000) == [] and own.topic("returns") is not None


def test_a_group_that_the_master_names_no_more_is_deleted_unless_a_member_here_uses_it(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    own.group_put("local")
    master.groups = ["billing", "audit", "kept"]
    master.offsets = {f"orders@{group}": {"0": 1} for group in master.groups}
    tables.meet(tables.ask())
    topic, kept = own.topic("orders"), own.group("kept")
    assert topic is not None and kept is not None
    own.owned.add(own.offset_put(kept, topic.queues[0]))
    master.groups, master.offsets = ["billing"], {"orders@billing": {"0": 1}}
    tables.copy()
    assert sorted(own.all_groups) == ["billing", "kept", "local"]


def test_an_answer_that_comes_when_the_master_is_not_followed_any_more_changes_nothing(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.may_answer.clear()  # as of a host that stands still
    refused: list[str] = []

    def copy() -> None:
        try:
            tables.copy()
        except UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=copy)
    thread.start()
    eventually(lambda: master.asked, "the master is asked")
    tables.end()
    master.may_answer.set()
    thread.join(DEADLINE_SECONDS)
    assert own.topic("orders") is None and len(refused) == 1


def test_nothing_is_made_again_on_account_of_a_master_of_before(own: MemoryTables, tables: MasterTables) -> None:
    tables.copy()
    before = own.topic("orders")
    tables.end()
    for change in (
        lambda: tables.make_again("orders"),
        lambda: tables.make_topic("orders", 4),
        tables.copy_offsets,
    ):
        with pytest.raises(UsageError):
            change()
    assert own.topic("orders") is before


def test_a_mark_is_taken_over_unless_the_tables_were_copied_after_it(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    master.log_end = 100
    tables.copy()
    tables.change(TablesMark(topics=[TopicConfig("old")], deleted_topics=["orders"]), 99)
    assert own.topic("old") is None and own.topic("orders") is not None, "an answer of then tells of it"
    group = SubscriptionGroupConfig("refunds", retryMaxTimes=3)
    tables.change(TablesMark(topics=[TopicConfig("new", 4, 4)], groups=[group]), 100)
    made = own.topic("new")
    assert made is not None and made.write_queues == 4
    assert own.group("refunds") is not None
    tables.change(TablesMark(deleted_topics=["new", "never"], deleted_groups=["refunds", "never"]), 200)
    assert own.topic("new") is None and own.group("refunds") is None


def test_a_mark_deletes_no_topic_with_a_record_behind_it(
    master: Master, own: MemoryTables, tables: MasterTables
) -> None:
    tables.copy()
    topic = own.topic("orders")
    assert topic is not None
    own.bounds[topic.queues[0]] = QueueBounds(0, 2)  # records at 0 and 1000
    tables.change(TablesMark(deleted_topics=["orders"]), 1000)
    assert own.topic("orders") is not None, "it was made again"
    tables.change(TablesMark(deleted_topics=["orders"]), 1001)
    assert own.topic("orders") is None


@pytest.mark.parametrize(("born", "is_emptied"), [(0, False), (1, True), (2000, True)])
def test_a_topic_that_was_deleted_and_made_again_before_one_mark_is_emptied(
    master: Master, own: MemoryTables, tables: MasterTables, born: int, is_emptied: bool
) -> None:
    tables.copy()
    before = own.topic("orders")
    assert before is not None
    own.bounds[before.queues[0]] = QueueBounds(0, 2)  # records at 0 and 1000
    tables.change(TablesMark(topics=[TopicConfig("orders", 1, 1)], born={"orders": born}), 2000)
    after = own.topic("orders")
    assert after is not None and (after.queues != before.queues) == is_emptied


def test_a_topic_that_a_mark_makes_is_absent_no_more(master: Master, own: MemoryTables, tables: MasterTables) -> None:
    master.log_end = 100
    tables.copy()
    master.topics = []
    tables.copy()
    tables.change(TablesMark(topics=[TopicConfig("orders")]), 100)
    assert tables.settle(100) == [] and own.topic("orders") is not None
