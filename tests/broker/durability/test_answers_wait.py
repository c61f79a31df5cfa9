"""Every answer that says that something is stored waits for the disk, where a topic counts what is on disk only.

    broker   topic    the answer
    sync     broker   waits        the topic that the message was sent to decides: its half, op record, retry copy and
    async    sync     waits        checkpoint lie elsewhere
    sync     async    comes at once
    async    broker   comes at once

A row of `ACTS` stores something by a request, and says which topic decides. Deliveries that the broker makes by itself
(delays, timers, pops that come again) have no answer.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.errors import NotMaster
from shmq.message import POP_RETRY, retry_topic, retry_topic_of
from shmq.properties import encode_properties
from shmq.protocol.batch_body import pack_entry
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response, TopicFlush
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.message_id import message_id_text
from shmq.protocol.pop import BatchAck, BatchAcks, bit_set
from shmq.protocol.request_reply import SharedAddress, reply_topic
from shmq.protocol.system_topics import transaction
from shmq.shm.core import KeeperStore, ReplicaStore
from tests.broker.durability.live_logic import LiveLogic, live_logic
from tests.tables.rows import every_row

HALF = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "U1"}
LONG = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
)
SYNC_BY_BROKER, SYNC_BY_TOPIC = (True, TopicFlush.BROKER), (False, TopicFlush.SYNC)
ASYNC_BY_BROKER, ASYNC_BY_TOPIC = (False, TopicFlush.BROKER), (True, TopicFlush.ASYNC)
Act = Callable[[LiveLogic], int]


def stored_and_flushed(logic: LiveLogic, body: bytes = b"m", **properties: str) -> None:
    """What an act is about was acknowledged before."""
    sent = logic.send(body, **properties)
    logic.flush()
    assert logic.replies[sent].code == Response.SUCCESS


def message(logic: LiveLogic) -> int:
    return logic.send(b"m")


def message_in_long_fields(logic: LiveLogic) -> int:
    return logic.ask(Request.SEND_MESSAGE, dict(zip(LONG, ("p", "orders", "TBW102", 4, 0, 0, 0, 0), strict=True)), b"m")


def batch(logic: LiveLogic) -> int:
    fields = dict(zip("abcdefgh", ("p", "orders", "TBW102", 4, 0, 0, 0, 0), strict=True)) | {"m": "true"}
    return logic.ask(Request.SEND_BATCH_MESSAGE, fields, pack_entry(b"1", b"") + pack_entry(b"2", b""))


def delayed(logic: LiveLogic) -> int:
    return logic.send(b"m", DELAY="2")


def timed(logic: LiveLogic) -> int:
    return logic.send(b"m", TIMER_DELAY_MS="3600000")


def recall(logic: LiveLogic) -> int:
    sent = logic.send(b"late", TIMER_DELAY_MS="3600000", UNIQ_KEY="U1")
    logic.flush()
    handle = logic.replies[sent].ext["recallHandle"]
    return logic.ask(Request.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle})


def half(logic: LiveLogic) -> int:
    return logic.send(b"m", **HALF)


def end(logic: LiveLogic, state: int) -> int:
    stored_and_flushed(logic, **HALF)
    (record,) = logic.stored(transaction.HALF_TOPIC)
    ext = {"producerGroup": "shop", "tranStateTableOffset": record.queue_offset, "msgId": "", "commitOrRollback": state}
    return logic.ask(Request.END_TRANSACTION, ext | {"commitLogOffset": record.log_position})


def commit(logic: LiveLogic) -> int:
    return end(logic, transaction.COMMIT)


def rollback(logic: LiveLogic) -> int:
    return end(logic, transaction.ROLLBACK)


def checks_begun_anew(logic: LiveLogic) -> int:
    stored_and_flushed(logic, **HALF)
    (record,) = logic.stored(transaction.HALF_TOPIC)
    named = message_id_text(record.store_host, record.log_position)
    return logic.ask(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": named})


def give_back(logic: LiveLogic, topic: str = "orders", **fields: int) -> int:
    record = logic.stored(topic)[0]
    ext = {"group": "g", "offset": record.log_position, "delayLevel": 2, "originTopic": topic}
    return logic.ask(Request.CONSUMER_SEND_MSG_BACK, ext | fields)


def given_back(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return give_back(logic)


def given_back_for_a_time(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return give_back(logic, delayMs=3_600_000)


def given_back_a_second_time(logic: LiveLogic) -> int:
    """The copy lies in the retry topic; what decides is still the topic that the message was sent to."""
    stored_and_flushed(logic)
    give_back(logic, delayLevel=1)
    for _ in range(3):
        logic.flush()
        logic.turns()
    return give_back(logic, retry_topic("g"))


def given_up(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return give_back(logic, delayLevel=-1)


def given_up_again(logic: LiveLogic) -> int:
    """A client without an answer asks again: nothing is stored, and what was stored is not on disk yet."""
    given_up(logic)
    return give_back(logic, delayLevel=-1)


def sent_to_the_retry_topic(logic: LiveLogic) -> int:
    """What stock clients do with a message that no broker took back."""
    given_back(logic)
    logic.flush()
    fields = dict(zip("abcdefgh", ("p", retry_topic("g"), "TBW102", 4, 0, 0, 0, 0), strict=True))
    return logic.ask(Request.SEND_MESSAGE_V2, fields | {"i": encode_properties({"RETRY_TOPIC": "orders"})}, b"m")


def pop(logic: LiveLogic, **changes: object) -> dict[str, object]:
    """Pop a message, and return the fields that name it."""
    fields: dict[str, object] = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "maxMsgNums": 1}
    fields |= {"invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0, "order": "false", **changes}
    reply = logic.replies[logic.ask(Request.POP_MESSAGE, fields)]
    assert reply.code == Response.SUCCESS
    ext = reply.ext
    retry, queue, offset = ext["startOffsetInfo"].split(" ")
    named = f"{offset} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} {retry} test {queue} {offset}"
    topic = retry_topic_of("g", "orders") if retry == POP_RETRY else "orders"
    return {"consumerGroup": "g", "topic": topic, "queueId": queue, "extraInfo": named, "offset": offset}


def acknowledged(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return logic.ask(Request.ACK_MESSAGE, pop(logic))


def acknowledged_twice(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    receipt = pop(logic)
    logic.ask(Request.ACK_MESSAGE, receipt)
    return logic.ask(Request.ACK_MESSAGE, receipt)


def acknowledged_in_order(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return logic.ask(Request.ACK_MESSAGE, pop(logic, order="true"))


def acknowledged_when_it_came_again(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    pop(logic, invisibleTime=1)
    for _ in range(3):
        logic.turns()
        logic.flush()
    return logic.ask(Request.ACK_MESSAGE, pop(logic, queueId=-1))


def acknowledged_in_a_batch(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    offset, pop_ms, invisible_ms, revive_queue, retry, _, queue, _ = str(pop(logic)["extraInfo"]).split(" ")
    bits = bit_set(int(offset), [int(offset)])
    ack = BatchAck(
        "g", "orders", retry, int(offset), int(queue), int(revive_queue), int(pop_ms), int(invisible_ms), bits
    )
    return logic.ask(Request.BATCH_ACK_MESSAGE, {}, encode_body(BatchAcks("test", [ack])))


def given_more_time(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return logic.ask(Request.CHANGE_MESSAGE_INVISIBLETIME, pop(logic) | {"invisibleTime": 90_000})


def given_more_time_in_order(logic: LiveLogic) -> int:
    stored_and_flushed(logic)
    return logic.ask(Request.CHANGE_MESSAGE_INVISIBLETIME, pop(logic, order="true") | {"invisibleTime": 90_000})


ACTS = [
    message,
    message_in_long_fields,
    batch,
    delayed,
    timed,
    recall,
    half,
    commit,
    rollback,
    checks_begun_anew,
    given_back,
    given_back_for_a_time,
    given_back_a_second_time,
    given_up,
    given_up_again,
    sent_to_the_retry_topic,
    acknowledged,
    acknowledged_twice,
    acknowledged_in_order,
    acknowledged_when_it_came_again,
    acknowledged_in_a_batch,
    given_more_time,
    given_more_time_in_order,
]


Mode = tuple[bool, TopicFlush]


@contextlib.contextmanager
def logic_in(mode: Mode) -> Iterator[LiveLogic]:
    flush_sync, topic_flush = mode
    with (
        tempfile.TemporaryDirectory(prefix="shmq-") as folder,
        live_logic(Path(folder), flush_sync=flush_sync) as logic,
    ):
        logic.tables.topic_set_flush("orders", topic_flush)
        yield logic


@pytest.fixture
def logic() -> Iterator[LiveLogic]:
    with logic_in(SYNC_BY_BROKER) as logic:
        yield logic


@every_row("mode", [SYNC_BY_BROKER, SYNC_BY_TOPIC])
@every_row("act", ACTS)
def test_an_answer_that_says_stored_waits_for_the_disk(mode: Mode, act: Act) -> None:
    with logic_in(mode) as logic:
        asked = act(logic)
        logic.take(logic.broker.flushed(logic.store.durable_end, logic.now_ms))
        assert asked not in logic.replies
        logic.flush()
        assert logic.replies[asked].code == Response.SUCCESS


def assert_in_doubt(reply: Command) -> None:
    error = error_of(reply)
    assert isinstance(error, NotMaster) and error.maybe_stored, reply
    assert reply.code == Response.SERVICE_NOT_AVAILABLE and reply.ext["TRACE_ON"] == "true"


@every_row("mode", [SYNC_BY_BROKER, SYNC_BY_TOPIC])
@every_row("act", ACTS)
def test_no_answer_says_stored_once_the_lease_is_over(mode: Mode, act: Act) -> None:
    with logic_in(mode) as logic:
        asked = act(logic)
        ReplicaStore(logic.store).lease(1)
        logic.flush()
        assert_in_doubt(logic.replies[asked])


def test_an_answer_that_comes_behind_its_lease_does_not_say_stored(logic: LiveLogic) -> None:
    asked = message(logic)
    ReplicaStore(logic.store).lease(1)
    KeeperStore(logic.store).flush()
    logic.take(logic.broker.tick(logic.now_ms + logic.settings.flush_timeout_ms))
    assert_in_doubt(logic.replies[asked])


@every_row("mode", [SYNC_BY_BROKER, ASYNC_BY_BROKER])
@every_row("act", [given_up, acknowledged, acknowledged_in_order])
def test_what_was_done_before_is_not_confirmed_without_a_lease(mode: Mode, act: Act) -> None:
    """A client whose first answer was lost asks again: nothing is stored, and what was is in doubt."""
    with logic_in(mode) as logic:
        first = act(logic)
        logic.flush()
        assert logic.replies[first].code == Response.SUCCESS
        ReplicaStore(logic.store).lease(1)
        assert_in_doubt(logic.replies[logic.again()])


@every_row("mode", [ASYNC_BY_BROKER, ASYNC_BY_TOPIC])
@every_row("act", [act for act in ACTS if act is not given_back_a_second_time])
def test_an_answer_does_not_wait_where_storing_is_enough(mode: Mode, act: Act) -> None:
    with logic_in(mode) as logic:
        assert logic.replies[act(logic)].code == Response.SUCCESS


def replied(logic: LiveLogic) -> int:
    fields = dict(zip("abcdefgh", ("p", reply_topic("DefaultCluster"), "TBW102", 4, 0, 0, 0, 0), strict=True))
    text = encode_properties({"REPLY_TO_CLIENT": str(SharedAddress(0, "me")), "CORRELATION_ID": "1"})
    return logic.ask(Request.SEND_REPLY_MESSAGE_V2, fields | {"i": text}, b"42")


@every_row("mode", [SYNC_BY_BROKER, ASYNC_BY_BROKER])
def test_a_reply_waits_where_its_topic_says_so_and_nowhere_else(mode: Mode) -> None:
    with logic_in(mode) as logic:
        assert logic.replies[replied(logic)].code == Response.SUCCESS
        logic.tables.topic_set_flush(reply_topic("DefaultCluster"), TopicFlush.SYNC)
        asked = replied(logic)
        assert asked not in logic.replies
        logic.flush()
        assert logic.replies[asked].code == Response.SUCCESS


def test_a_reply_that_was_not_stored_is_not_said_to_be() -> None:
    with logic_in(ASYNC_BY_BROKER) as logic:
        ReplicaStore(logic.store).fence_off("", 60.0)
        ReplicaStore(logic.store).lease(1)
        error = error_of(logic.replies[replied(logic)])
        assert isinstance(error, NotMaster) and not error.maybe_stored


def test_a_oneway_does_not_wait(logic: LiveLogic) -> None:
    """Stock clients end their transactions so; what follows from it happens at once."""
    stored_and_flushed(logic, **HALF)
    (record,) = logic.stored(transaction.HALF_TOPIC)
    ext = {"producerGroup": "shop", "tranStateTableOffset": record.queue_offset, "commitLogOffset": record.log_position}
    logic.ask(Request.END_TRANSACTION, ext | {"commitOrRollback": transaction.COMMIT, "msgId": ""}, oneway=True)
    assert logic.broker.wanted.durable_end is None
    assert logic.bodies("orders") == [b"m"]
