"""Killed at each step of each feature's protocol, nothing is lost and nothing shown early.

Every test runs its feature once for every change the bridge makes, and kills it in front of that one; then once for
every step of the client, which is killed behind it; then both, several times, at places that a seed chooses: few in
CI, many in the long form.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.message import retry_topic_of
from shmq.properties import encode_properties, parse_properties
from shmq.protocol.body import HeartbeatData, ProducerData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.system_topics import transaction
from shmq.timing import CANCELLED_KEY, TIMER_TOPIC
from tests.broker.conftest import MemoryTables
from tests.broker.kills import World
from tests.broker.pop.pop_client import PoppedMessage, messages_of
from tests.seed import SEED

LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
ROUNDS = 2000 if LONG else 10
POINTS_MAX = 1000  # a feature that makes more changes than this is a mistake of the test
SEND = dict(zip("abcdefghjkm", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", "0", "false", "false"), strict=True))
DELAYS = "1s 1s 2s 3s 4s"  # short ones, so that a run is short: a retry is of level 3 and more


@pytest.fixture
def world(settings: BrokerSettings) -> Callable[..., World]:
    settings = replace(settings, serves_tcp=True, delay_levels=DELAYS)
    return lambda *kills, **changes: World(MemoryTables(), replace(settings, **changes), *kills)


def every_kill(make: Callable[..., World]) -> Iterator[World]:
    """Worlds whose bridge, or else client, is killed at one place each, until every place there is had its turn."""
    for client in (False, True):
        for place in range(POINTS_MAX):
            world = make(-1, place) if client else make(place)
            yield world
            if not world.was_killed:
                break
        else:
            raise AssertionError(f"there are more than {POINTS_MAX} places")
        assert place > (1 if client else 3), "nothing was killed"
    dice = random.Random(SEED)
    for _ in range(ROUNDS):
        yield make(dice.randrange(60), dice.randrange(30), lambda: dice.randrange(60))


def send(world: World, body: bytes, **properties: str) -> Any:
    """Send until that is confirmed; a send without an answer may have been stored."""
    return world.insist(Request.SEND_MESSAGE_V2, {**SEND, "i": encode_properties(properties)}, body)


# ---- retry and dead letters ------------------------------------------------------------------------------------------


def consume_in_vain(world: World, *, tries_max: int) -> None:
    """One look of a member at its topic and its retries: it gives back what it finds, and moves its offset."""
    for topic in ("orders", "%RETRY%g"):
        for record in world.records(topic)[world.committed("g", topic) :]:
            ext = {"offset": record.log_position, "group": "g", "delayLevel": 0, "maxReconsumeTimes": tries_max}
            reply = world.ask(Request.CONSUMER_SEND_MSG_BACK, ext)
            if reply is None or not world.lives():
                return  # the next one begins at the offset that was moved last
            assert reply.code == Response.SUCCESS, reply.remark
            ext = {"consumerGroup": "g", "topic": topic, "queueId": 0, "commitOffset": record.queue_offset + 1}
            if world.ask(Request.UPDATE_CONSUMER_OFFSET, ext) is None or not world.lives():
                return


def test_i12_a_message_that_fails_is_retried_with_one_try_more_and_is_a_dead_letter_exactly_once(
    world: Callable[..., World],
) -> None:
    bodies = [b"a", b"b", b"c"]
    for run in every_kill(world):
        run.put(*bodies)
        for _ in range(16):
            consume_in_vain(run, tries_max=2)
            run.pass_time(1000)
        assert Counter(record.body for record in run.records("%DLQ%g")) == Counter(bodies)
        assert {record.reconsume_times for record in run.records("%DLQ%g")} == {3}
        retries = run.records("%RETRY%g")
        assert {(record.body, record.reconsume_times) for record in retries} == {(b, n) for b in bodies for n in (1, 2)}
        for record in retries:
            level = 2 + record.reconsume_times
            waited = [each for each in run.records("SCHEDULE_TOPIC_XXXX", level - 1) if each.body == record.body]
            assert record.store_ms >= min(each.store_ms for each in waited) + (level - 1) * 1000, "it is early"
        assert run.committed("g", "orders") == 3
        assert run.committed("g", "%RETRY%g") == len(retries)


# ---- delays ----------------------------------------------------------------------------------------------------------


def test_i11_a_delayed_message_is_delivered_when_its_level_is_over_and_not_before(world: Callable[..., World]) -> None:
    for run in every_kill(world):
        for number in range(4):
            if run.lives():
                assert send(run, b"%d" % number, DELAY=str(1 + number)).code == Response.SUCCESS
        run.pass_time(6000)
        waited = [(record, level) for level in range(5) for record in run.records("SCHEDULE_TOPIC_XXXX", level)]
        came = run.records("orders")
        assert {record.body for record in came} == {record.body for record, _ in waited}
        assert len({record.body for record in came}) >= 4 - run.client_kills
        assert len(came) == len(waited)
        due = {record.body: record.store_ms + [1000, 1000, 2000, 3000][level] for record, level in reversed(waited)}
        assert [record for record in came if record.store_ms < due[record.body]] == []


def test_i11_a_timed_message_is_delivered_when_it_is_due_and_one_that_was_recalled_never(
    world: Callable[..., World],
) -> None:
    for run in every_kill(world):
        due: dict[bytes, int] = {}
        recalled: set[bytes] = set()
        for number in range(5):
            body = b"%d" % number
            moment = run.tables.clock + 2010 + 330 * number  # some a moment behind a tick, which finds them not due yet
            reply = send(run, body, TIMER_DELIVER_MS=str(moment), UNIQ_KEY=f"K{number}")
            assert reply.code == Response.SUCCESS
            due[body] = moment
            if number % 2 and run.lives():
                ext = {"topic": "orders", "recallHandle": reply.ext["recallHandle"]}
                assert run.insist(Request.RECALL_MESSAGE, ext).code == Response.SUCCESS
                recalled.add(body)
        run.pass_time(6000)
        came = run.records("orders")
        assert {record.body for record in came} == due.keys() - recalled
        waited = [record for record in run.records(TIMER_TOPIC) if record.body in due.keys() - recalled]
        waited = [record for record in waited if CANCELLED_KEY.encode() not in record.properties]
        assert len(came) == len(waited)
        assert [record for record in came if record.store_ms < due[record.body]] == []


# ---- transactions ----------------------------------------------------------------------------------------------------

FATES = {b"0": transaction.COMMIT, b"1": transaction.ROLLBACK, b"2": transaction.COMMIT, b"3": transaction.ROLLBACK}


def prepare(world: World, body: bytes) -> dict[str, str]:
    """Send a half until that is confirmed; a member that is asked about any other knows no key of it."""
    key = ""
    reply = None
    while reply is None:
        key = f"{body.decode()}-{world.log.end}-{world.kills}"
        text = encode_properties({"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": key})
        reply = world.ask(Request.SEND_MESSAGE_V2, {**SEND, "i": text}, body)
    assert reply.code == Response.SUCCESS, reply.remark
    offset, position = int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)
    return {"tranStateTableOffset": str(offset), "commitLogOffset": str(position), "transactionId": key}


def end(world: World, half: dict[str, str], state: int) -> None:
    """Say how it ended, once: a producer does not wait for the answer."""
    fields = {"producerGroup": "shop", "commitOrRollback": state, "msgId": half["transactionId"], **half}
    reply = world.ask(Request.END_TRANSACTION, fields)
    assert reply is None or reply.code == Response.SUCCESS or "settled before" in (reply.remark or ""), reply


def answer_checks(world: World, known: dict[str, bytes]) -> None:
    """Answer as a member of the producer group: a known half has its fate, any other was never begun."""
    beat = HeartbeatData(clientID="client", producerDataSet=[ProducerData(groupName="shop")])
    world.ask(Request.HEART_BEAT, {}, encode_body(beat))
    asked, world.notices = world.notices, []
    for notice in asked:
        ext = notice.command.ext
        body = known.get(ext["transactionId"])
        half = {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset", "transactionId")}
        end(world, half, transaction.ROLLBACK if body is None else FATES[body])


def test_i10_a_transaction_is_visible_exactly_once_after_its_commit_and_never_before_or_without_it(
    world: Callable[..., World],
) -> None:
    for run in every_kill(lambda *kills: world(*kills, transaction_timeout_ms=2000, transaction_interval_ms=3000)):
        known: dict[str, bytes] = {}
        for body, fate in FATES.items():
            half = prepare(run, body)
            known[half["transactionId"]] = body
            assert body not in [record.body for record in run.records("orders")], "it is not committed yet"
            if body in (b"0", b"1") and run.lives():  # the others are never ended: they are asked about
                end(run, half, fate)
        for _ in range(20):
            answer_checks(run, known)
            run.pass_time(1000)
        committed = {body: 1 for body, fate in FATES.items() if fate == transaction.COMMIT}
        assert Counter(record.body for record in run.records("orders")) == committed


# ---- POP -------------------------------------------------------------------------------------------------------------

INVISIBLE_MS = 5000


def pop(world: World) -> list[PoppedMessage]:
    """What one pop brings; nothing when the broker did not live to answer."""
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS,
        "pollTime": 0,
        "bornTime": world.now_ms,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    reply = world.ask(Request.POP_MESSAGE, fields)
    return messages_of(reply) if reply is not None else []


def test_i5_a_popped_message_comes_again_unless_it_was_acknowledged_and_not_before_its_time(
    world: Callable[..., World],
) -> None:
    bodies = [b"%d" % number for number in range(5)]
    for run in every_kill(world):
        run.put(*bodies)
        hidden: dict[bytes, int] = {}
        done: set[bytes] = set()
        for _ in range(60):
            for message in pop(run):
                assert message.body not in done, "it was acknowledged"
                assert run.now_ms >= hidden.get(message.body, 0), "it is hidden still"
                hidden[message.body] = run.now_ms + INVISIBLE_MS
                settle(run, message, hidden, done)
            if len(done) == len(bodies):
                break
            run.pass_time(500)
        assert done == set(bodies)
        run.pass_time(3 * INVISIBLE_MS)
        assert pop(run) == []
        copies = run.records(retry_topic_of("g", "orders"))
        marks = Counter(parse_properties(record.properties.decode())["POP_COPY"] for record in copies)
        assert [mark for mark, count in marks.items() if count > 1] == [], "one copy of each that came again"


def settle(world: World, message: PoppedMessage, hidden: dict[bytes, int], done: set[bytes]) -> None:
    """The first time one is given back for later, one forgotten and the rest acknowledged; all are, the next time."""
    if not world.lives():
        return
    first_time = message.tries == 0
    if first_time and message.body == b"1":
        ext = {**message.settling("g"), "invisibleTime": 2 * INVISIBLE_MS}
        reply = world.ask(Request.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if reply is not None and reply.code == Response.SUCCESS:
            hidden[message.body] = world.now_ms + 2 * INVISIBLE_MS
        else:
            hidden[message.body] = 0  # either time may hold
    elif not (first_time and message.body == b"2"):
        reply = world.ask(Request.ACK_MESSAGE, message.settling("g"))
        if reply is not None and reply.code == Response.SUCCESS:
            done.add(message.body)


def test_i12_a_popped_message_that_is_never_acknowledged_is_a_dead_letter_exactly_once(
    world: Callable[..., World],
) -> None:
    bodies = [b"a", b"b"]
    for run in every_kill(world):
        run._depth += 1
        run.tables.group_set(run.tables.group_put("g"), b'{"retryMaxTimes":1}')
        run._depth -= 1
        run.put(*bodies)
        for _ in range(8):
            pop(run)
            run.lives()
            run.pass_time(INVISIBLE_MS + 100)
        assert Counter(record.body for record in run.records("%DLQ%g")) == Counter(bodies)
        copies = run.records(retry_topic_of("g", "orders"))
        assert Counter((record.body, record.reconsume_times) for record in copies) == Counter((b, 1) for b in bodies)
