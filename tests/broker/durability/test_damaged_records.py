"""A damaged record of the broker's own is never taken for another one, is reported once, and delays no other.

Waiting messages, halves and op records are read by the broker itself. Each test damages one byte of each of many such
records, another byte in each, on a disk that has everything.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.daemon.broker.records.stored_record import StoredRecord
from shmq.daemon.broker.timers.timers import TIMER_TOPIC
from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.message import dead_letter_topic, retry_topic
from shmq.protocol.codes import Request, Response
from shmq.protocol.system_topics import transaction
from tests.broker.durability.live_logic import LiveLogic, live_logic

BODY_AT = 88
HALF = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "U1"}


@pytest.fixture
def logic(tmp_path: Path) -> Iterator[LiveLogic]:
    with live_logic(tmp_path, transaction_timeout_ms=0, transaction_interval_ms=0) as logic:
        yield logic


def flip(logic: LiveLogic, log_position: int, bits: int = 0xFF) -> None:
    with open(logic.instance.store_path + f"/commitlog/{0:020d}", "r+b") as file:
        file.seek(log_position)
        byte = file.read(1)[0]
        file.seek(log_position)
        file.write(bytes([byte ^ bits]))


def pairs_of(logic: LiveLogic, topic: str, queue_id: int, store: Callable[[bytes], object]) -> list[StoredRecord]:
    """Store one record as a measure, then a pair for each of its bytes: a whole one and one that is damaged there.

    Returns the damaged ones as they were.
    """
    store(b"%08d" % 0)
    logic.flush()
    first = logic.stored(topic, queue_id)[0]
    store(b"%08d" % 1)
    logic.flush()
    size = size_of(logic, first.log_position)
    for number in range(size):
        store(b"%08d" % (2 * number + 2))
        store(b"%08d" % (2 * number + 3))
    logic.flush()
    damaged = logic.stored(topic, queue_id)[3::2]
    assert len(damaged) == size
    for byte, record in enumerate(damaged):
        assert size_of(logic, record.log_position) == size, "records of one size"
        flip(logic, record.log_position + byte)
    return damaged


def size_of(logic: LiveLogic, log_position: int) -> int:
    with open(logic.instance.store_path + f"/commitlog/{0:020d}", "rb") as file:
        file.seek(log_position)
        return int.from_bytes(file.read(4))


def whole(damaged: list[StoredRecord]) -> list[bytes]:
    return [b"%08d" % number for number in (0, 1, *range(2, 2 * len(damaged) + 2, 2))]


def settle(logic: LiveLogic) -> None:
    """Let the clock and the disk go on until nothing more is due."""
    for _ in range(4):
        logic.turns()
        logic.flush()


def reports_of(logic: LiveLogic, *words: str) -> list[str]:
    return [report for report in logic.reports if all(word in report for word in words)]


def code_of(logic: LiveLogic, request: int, **ext: object) -> int:
    """How a request is answered, whatever it waits for on the disk."""
    asked = logic.ask(request, ext)
    logic.flush()
    return logic.replies[asked].code


def end(logic: LiveLogic, half: StoredRecord, state: int = transaction.COMMIT) -> int:
    named = {"tranStateTableOffset": half.queue_offset, "commitLogOffset": half.log_position, "msgId": ""}
    return code_of(logic, Request.END_TRANSACTION, producerGroup="shop", commitOrRollback=state, **named)


def give_back(logic: LiveLogic, record: StoredRecord, level: int) -> int:
    named = {"group": "g", "offset": record.log_position, "originTopic": "orders"}
    return code_of(logic, Request.CONSUMER_SEND_MSG_BACK, delayLevel=level, **named)


# ---- messages that wait ---------------------------------------------------------------------------------------------


def test_of_timed_messages_only_the_damaged_ones_stay_away_and_each_is_reported_once(logic: LiveLogic) -> None:
    damaged = pairs_of(logic, TIMER_TOPIC, 0, lambda body: logic.send(body, TIMER_DELAY_MS="2"))
    settle(logic)
    assert sorted(logic.bodies("orders")) == whole(damaged)
    for record in damaged:
        assert len(reports_of(logic, f"at {record.queue_offset} ", "cannot be read")) == 1
    logic.start()
    settle(logic)
    assert sorted(logic.bodies("orders")) == whole(damaged)


def test_of_delayed_messages_only_the_damaged_ones_stay_away(logic: LiveLogic) -> None:
    damaged = pairs_of(logic, SCHEDULE_TOPIC, 0, lambda body: logic.send(body, DELAY="1"))
    settle(logic)
    logic.start()
    settle(logic)
    assert sorted(logic.bodies("orders")) == whole(damaged)


def test_a_damaged_message_is_never_given_back_as_something_else(logic: LiveLogic) -> None:
    damaged = pairs_of(logic, "orders", 0, logic.send)
    for record in [*logic.stored("orders"), *damaged]:
        for level in (1, -1):
            assert (give_back(logic, record, level) != Response.SUCCESS) == (record in damaged), record.queue_offset
    settle(logic)
    assert sorted(logic.bodies(dead_letter_topic("g"))) == whole(damaged)
    assert sorted(logic.bodies(retry_topic("g"))) == whole(damaged)


def test_of_messages_that_were_given_back_only_the_damaged_copies_stay_away(logic: LiveLogic) -> None:
    def store(body: bytes) -> None:
        logic.send(body)
        logic.flush()
        assert give_back(logic, logic.stored("orders")[-1], 1) == Response.SUCCESS

    damaged = pairs_of(logic, SCHEDULE_TOPIC, 0, store)
    settle(logic)
    assert sorted(logic.bodies(retry_topic("g"))) == whole(damaged)


# ---- transactions ---------------------------------------------------------------------------------------------------


def test_a_damaged_half_is_never_committed_and_the_others_are(logic: LiveLogic) -> None:
    damaged = pairs_of(logic, transaction.HALF_TOPIC, 0, lambda body: logic.send(body, **HALF))
    for half in [*logic.stored(transaction.HALF_TOPIC), *damaged]:
        assert (end(logic, half) != Response.SUCCESS) == (half in damaged), half.queue_offset
    settle(logic)
    assert sorted(logic.bodies("orders")) == whole(damaged)


def test_a_damaged_half_is_rolled_back_when_its_time_has_come_and_told_once(logic: LiveLogic) -> None:
    for number in range(8):
        logic.send(b"%d" % number, **HALF)
    logic.flush()
    halves = logic.stored(transaction.HALF_TOPIC)
    for byte, half in enumerate(halves[1::2]):
        flip(logic, half.log_position + 4 + 30 * byte)
    logic.turns()
    logic.flush()
    copies = [half for half in logic.stored(transaction.HALF_TOPIC) if half.queue_offset >= len(halves)]
    assert {half.body for half in copies} == {b"0", b"2", b"4", b"6"}
    for half in halves[1::2]:
        assert len(reports_of(logic, f"offset {half.queue_offset} ", "cannot be read", "rolled back")) == 1
    logic.start()
    logic.turns()
    assert not logic.bodies("orders")
    for half in halves[1::2]:
        assert len(reports_of(logic, f"offset {half.queue_offset} ", "cannot be read", "rolled back")) == 1


def commit(logic: LiveLogic, bodies: list[bytes]) -> list[StoredRecord]:
    """Commit messages, and return their halves."""
    for body in bodies:
        logic.send(body, **HALF)
    logic.flush()
    halves = logic.stored(transaction.HALF_TOPIC)[-len(bodies) :]
    for half in halves:
        assert end(logic, half) == Response.SUCCESS
    logic.flush()
    return halves


@pytest.mark.parametrize("byte", [4, 20, 60, 90, 100])
def test_a_commit_whose_op_record_is_damaged_is_not_carried_out_again(logic: LiveLogic, byte: int) -> None:
    bodies = [b"%d" % number for number in range(8)]
    halves = commit(logic, bodies)
    for op in logic.stored(transaction.OP_TOPIC):
        flip(logic, op.log_position + byte)
    logic.start()
    settle(logic)
    for half in halves:
        end(logic, half)
    settle(logic)
    assert logic.bodies("orders") == bodies


def test_a_damaged_op_record_settles_no_other_half(logic: LiveLogic) -> None:
    bodies = [b"%d" % number for number in range(4)]
    for body in bodies:
        logic.send(body, **HALF)
    logic.flush()
    halves = logic.stored(transaction.HALF_TOPIC)
    assert end(logic, halves[0]) == Response.SUCCESS
    [op] = logic.stored(transaction.OP_TOPIC)
    assert op.body == b"0"
    flip(logic, op.log_position + BODY_AT, bits=3)  # as if it were the one of half 3
    logic.start()
    settle(logic)
    for half in halves[1:]:
        end(logic, half)
    settle(logic)
    assert logic.bodies("orders") == bodies


def test_damage_in_front_of_committed_messages_hides_none_of_them(logic: LiveLogic) -> None:
    """What is looked for behind the open halves is found behind damage, too."""
    logic.send(b"open", **HALF)
    logic.send(b"between")
    logic.flush()
    between = logic.stored("orders")[0]
    halves = commit(logic, [b"one", b"two"])
    flip(logic, between.log_position + 4)
    for op in logic.stored(transaction.OP_TOPIC):
        flip(logic, op.log_position + 4)
    logic.start()
    settle(logic)
    for half in halves:
        end(logic, half)
    settle(logic)
    assert logic.bodies("orders") == [b"one", b"two"]
