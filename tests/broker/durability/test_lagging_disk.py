"""Every part that reads the log for itself waits for what is not on disk yet: nothing is lost, nothing comes twice.

Each row of the table stores something, lets it become due while nothing is durable, looks again and again, and then
lets the disk catch up.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.timers.timers import TIMER_TOPIC
from shmq.message import dead_letter_topic, retry_topic, retry_topic_of
from shmq.properties import encode_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.pop import parse_start_offsets
from shmq.protocol.system_topics import transaction
from shmq.timing import OUT_MS, out_ms
from tests.broker.durability.live_logic import LiveLogic, live_logic

COUNT = 24
HALF = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "U1"}
NONE_DURABLE, BRIDGE_KILLED = "the disk is slow", "the disk is slow and the bridge is killed"


@pytest.fixture
def logic(tmp_path: Path) -> Iterator[LiveLogic]:
    with live_logic(tmp_path, transaction_timeout_ms=0, transaction_interval_ms=0) as logic:
        yield logic


def all_of(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def timed(logic: LiveLogic) -> str:
    for body in all_of():
        logic.send(body, TIMER_DELAY_MS="2")
    return "orders"


def timed_by_another_broker(logic: LiveLogic) -> str:
    """Units that say no time: the record has to be read for it."""
    logic.send(b"far", TIMER_DELAY_MS="3600000")  # makes the topic
    topic = logic.tables.topic(TIMER_TOPIC)
    assert topic is not None
    due = logic.tables.clock_ms + 2
    properties = {OUT_MS: str(out_ms(due)), "TIMER_DELIVER_MS": str(due), "REAL_TOPIC": "orders", "REAL_QID": "0"}
    for body in all_of():
        logic.log.append(topic, 0, NewRecord(body, encode_properties(properties).encode()))
    return "orders"


def delayed(logic: LiveLogic) -> str:
    for body in all_of():
        logic.send(body, DELAY="1")
    return "orders"


def given_back(logic: LiveLogic, **fields: Any) -> str:
    for body in all_of():
        logic.send(body)
    logic.flush()
    for record in logic.stored("orders"):
        ext = {"group": "g", "offset": record.log_position, "delayLevel": 1, "originTopic": "orders", **fields}
        assert logic.ask(Request.CONSUMER_SEND_MSG_BACK, ext) not in logic.replies, "the copy is not on disk yet"
    return retry_topic("g")


def given_back_for_a_time(logic: LiveLogic) -> str:
    return given_back(logic, delayMs=2)


def given_up(logic: LiveLogic) -> str:
    """A dead letter that is sent back again by a consumer that got no answer."""
    given_back(logic, delayLevel=-1)
    logic.start()
    for record in logic.stored("orders"):
        ext = {"group": "g", "offset": record.log_position, "delayLevel": -1, "originTopic": "orders"}
        assert logic.ask(Request.CONSUMER_SEND_MSG_BACK, ext) not in logic.replies
    return dead_letter_topic("g")


def popped(logic: LiveLogic) -> str:
    for body in all_of():
        logic.send(body)
    logic.flush()
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 1}
    fields |= {"pollTime": 0, "bornTime": 0, "initMode": 0, "order": "false"}
    reply = logic.replies[logic.ask(Request.POP_MESSAGE, fields)]
    assert parse_start_offsets(reply.ext["startOffsetInfo"])
    return retry_topic_of("g", "orders")


def committed_when_asked(logic: LiveLogic) -> str:
    """Halves that are asked about; the producer answers at once, naming the copies that took their places."""
    for body in all_of():
        logic.send(body, **HALF)
    logic.flush()
    logic.turns()
    for half in logic.stored(transaction.HALF_TOPIC)[COUNT:]:
        end(logic, half.log_position, half.queue_offset, transaction.COMMIT)
    return "orders"


def committed_late(logic: LiveLogic) -> str:
    """The same, and the answers name what the producer has stored."""
    for body in all_of():
        logic.send(body, **HALF)
    logic.flush()
    first = logic.stored(transaction.HALF_TOPIC)
    logic.turns()
    logic.turns()
    for half in first:
        end(logic, half.log_position, half.queue_offset, transaction.COMMIT)
    return "orders"


def end(logic: LiveLogic, position: int, offset: int, state: int) -> None:
    ext = {"producerGroup": "shop", "tranStateTableOffset": offset, "commitLogOffset": position, "msgId": ""}
    ext |= {"commitOrRollback": state, "fromTransactionCheck": "true"}
    logic.ask(Request.END_TRANSACTION, ext, oneway=True)


Act = Callable[[LiveLogic], str]


@pytest.mark.parametrize("disturbance", [NONE_DURABLE, BRIDGE_KILLED])
@pytest.mark.parametrize(
    "act",
    [
        timed,
        timed_by_another_broker,
        delayed,
        given_back,
        given_back_for_a_time,
        given_up,
        popped,
        committed_when_asked,
        committed_late,
    ],
)
def test_nothing_is_lost_or_stored_twice_while_the_disk_lags(logic: LiveLogic, act: Act, disturbance: str) -> None:
    topic = act(logic)
    for _ in range(2):
        logic.turns()
        if disturbance == BRIDGE_KILLED:
            logic.start()
    for _ in range(4):  # what is copied has to become durable in its turn
        logic.flush()
        logic.turns()
    assert sorted(logic.bodies(topic), key=int_of) == all_of()
    assert not [report for report in logic.reports if "passed over" in report or "rolled back" in report]
    assert logic.log.passed_over == 0


def int_of(body: bytes) -> int:
    return int(body or b"-1")


def test_a_recall_is_answered_when_it_is_on_disk(logic: LiveLogic) -> None:
    sent = logic.send(b"late", TIMER_DELAY_MS="3600000", UNIQ_KEY="U1")
    logic.flush()
    fields = {"topic": "orders", "recallHandle": logic.replies[sent].ext["recallHandle"]}
    asked = logic.ask(Request.RECALL_MESSAGE, fields)
    logic.turns()
    assert asked not in logic.replies
    logic.flush()
    assert logic.replies[asked].code == Response.SUCCESS
    assert logic.replies[asked].ext["msgId"] == "U1"


def test_only_a_damaged_record_is_passed_over_and_it_is_counted(logic: LiveLogic) -> None:
    for number, body in enumerate(all_of(3)):
        logic.send(body, TIMER_DELAY_MS=str(2 + number))
    damaged = logic.stored(TIMER_TOPIC)[1]
    logic.flush()
    with open(logic.instance.store_path + f"/commitlog/{0:020d}", "r+b") as file:
        file.seek(damaged.log_position + 4)
        file.write(b"\xff")  # the magic code
    logic.turns()
    assert logic.bodies("orders") == [b"0", b"2"]
    assert logic.log.passed_over == 1
    assert any("cannot be read" in report for report in logic.reports)


def test_progress_waits_with_what_it_has_passed(logic: LiveLogic) -> None:
    """The words in shared memory never pass what is not visible, so a successor finds it."""
    timed(logic)
    logic.turns()
    logic.start()
    logic.turns()
    logic.flush()
    logic.turns()
    assert [property_of(record.properties, "REAL_TOPIC") for record in logic.stored("orders")] == ["orders"] * COUNT
