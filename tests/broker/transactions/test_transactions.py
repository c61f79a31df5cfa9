"""Transactions of TCP clients: what is stored at each step, who is asked when, and that each is settled once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.stored_record import StoredRecord, stored_record
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds, StoreFacts
from shmq.daemon.broker.transactions.transactions import GATHERING_MS
from shmq.daemon.logic.effects import Effect, Notify, Reply, Report, Wake
from shmq.daemon.logic.requests import Peer
from shmq.errors import BrokerBusy
from shmq.properties import PROPERTIES_BYTES_MAX, encode_properties, parse_properties
from shmq.protocol.body import HeartbeatData, ProducerData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.system_topics import transaction
from tests.broker.record_log import RecordLog

LOCAL, REMOTE = Address("127.0.0.1", 10911), Address("10.0.0.9", 40000)
SEND = {
    "a": "shop",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "2",
    "f": "4",
    "g": "77",
    "h": "5",
    "j": "0",
    "k": "false",
    "m": "false",
}
PROPERTIES = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "U1", "KEYS": "o-42", "TAGS": "red"}


class World:
    """A broker, its log, a clock for both, and clients by connection id."""

    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables, self.settings = tables, replace(settings, serves_tcp=True)
        self.log = RecordLog(tables)
        tables.units = self.log.units
        self.now_ms = 1_000_000
        self.start()

    def start(self) -> None:
        """Start as a new process, which knows only what the tables and the log hold."""
        self.broker = Broker(self.tables, self.settings, now_ms=self.now_ms, log=self.log)
        self.clients: set[int] = set()

    def client(self, number: int = 1) -> int:
        if number not in self.clients:
            self.broker.connected(number, None, self.now_ms, remote=REMOTE, local=LOCAL)
            self.clients.add(number)
        return number

    def member(self, number: int, group: str = "shop") -> None:
        beat = HeartbeatData(clientID=f"client-{number}", producerDataSet=[ProducerData(groupName=group)])
        assert self.ask(Request.HEART_BEAT, {}, body=encode_body(beat), client=number).code == Response.SUCCESS

    def effects(self, code: int, ext: dict[str, str], *, body: bytes = b"", client: int = 1, flag: int = 0) -> Any:
        command = Command(code=code, opaque=7, flag=flag, ext=ext, body=body)
        return self.broker.handle(self.client(client), command, self.now_ms)

    def ask(self, code: int, ext: dict[str, str], *, body: bytes = b"", client: int = 1) -> Command:
        replies = [e for e in self.effects(code, ext, body=body, client=client) if isinstance(e, Reply)]
        (reply,) = replies
        return reply.command

    def prepare(self, body: bytes = b"42 apples", **properties: str) -> "Prepared":
        text = encode_properties({**PROPERTIES, **properties})
        reply = self.ask(310, {**SEND, "i": text}, body=body)
        assert reply.code == Response.SUCCESS, reply.remark
        return Prepared(self, int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16), reply.ext)

    def pass_time(self, ms: int) -> list[Effect]:
        """Let time pass in ticks of a second, with the wake-ups that are asked for."""
        effects: list[Effect] = []
        for _ in range(ms // 1000):
            self.now_ms += 1000
            self.tables.clock += 1000
            more = self.broker.tick(self.now_ms)
            while True:
                effects += more
                if not any(isinstance(effect, Wake) for effect in more):
                    break
                self.now_ms += 1
                more = self.broker.woken(self.now_ms)
        return effects

    def checks(self, ms: int) -> list[Notify]:
        effects = self.pass_time(ms)
        asked = [effect for effect in effects if isinstance(effect, Notify)]
        assert all(effect.command.code == Request.CHECK_TRANSACTION_STATE for effect in asked)
        return asked

    def records(self, topic: str, queue_id: int = 0) -> list[StoredRecord]:
        found = self.tables.topic(topic)
        held = self.log.records.get(found.queues[queue_id], []) if found else []
        records = [stored_record(data) for data, _, _ in held]
        return [record for record in records if record is not None]

    @property
    def real(self) -> list[bytes]:
        return [record.body for record in self.records("orders", 2)]

    @property
    def ops(self) -> list[bytes]:
        return [record.body for record in self.records(transaction.OP_TOPIC)]


class Prepared:
    """What a producer knows of its transaction."""

    def __init__(self, world: World, offset: int, position: int, ext: dict[str, str]) -> None:
        self.world, self.offset, self.position, self.ext = world, offset, position, ext

    def end(self, state: int, *, client: int = 1, **changes: str) -> Command:
        return self.world.ask(Request.END_TRANSACTION, {**self.header(state), **changes}, client=client)

    def header(self, state: int) -> dict[str, str]:
        return {
            "producerGroup": "shop",
            "tranStateTableOffset": str(self.offset),
            "commitLogOffset": str(self.position),
            "commitOrRollback": str(state),
            "fromTransactionCheck": "false",
            "msgId": "U1",
            "transactionId": "U1",
        }


def asked_of(world: World, notify: Notify) -> Prepared:
    ext = notify.command.ext
    return Prepared(world, int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"]), ext)


@pytest.fixture
def world(tables: Any, settings: BrokerSettings) -> World:
    return World(tables, settings)


# -- the steps, as RocketMQ stores them
def test_a_half_message_is_stored_out_of_sight_with_where_it_belongs(world: World) -> None:
    prepared = world.prepare()
    assert prepared.ext["queueId"] == "2" and prepared.offset == 0
    assert world.real == [] and world.ops == []
    (half,) = world.records(transaction.HALF_TOPIC)
    assert (half.body, half.flag, half.sys_flag, half.born_ms, half.queue_offset) == (b"42 apples", 5, 0, 77, 0)
    properties = parse_properties(half.properties.decode())
    properties.pop("__CRC32#")
    assert properties == {**PROPERTIES, "CLUSTER": "DefaultCluster", "REAL_TOPIC": "orders", "REAL_QID": "2"}


def test_a_commit_stores_the_message_and_that_the_half_is_settled(world: World) -> None:
    prepared = world.prepare()
    reply = prepared.end(transaction.COMMIT)
    assert (reply.code, reply.remark, reply.ext) == (Response.SUCCESS, None, {})
    (real,) = world.records("orders", 2)
    (half,) = world.records(transaction.HALF_TOPIC)
    assert (real.body, real.flag, real.sys_flag & 12, real.born_ms) == (b"42 apples", 5, 8, 77)
    assert real.prepared_position == half.log_position == prepared.position
    assert real.born_host == half.born_host
    without = {"__CRC32#"}
    kept, of_half = (parse_properties(record.properties.decode()) for record in (real, half))
    assert {k: v for k, v in kept.items() if k not in without} == {k: v for k, v in of_half.items() if k not in without}
    (op,) = world.records(transaction.OP_TOPIC)
    assert op.body == b"0" and parse_properties(op.properties.decode())["TAGS"] == "d"


def test_the_message_and_its_op_record_lie_back_to_back_the_message_first(world: World) -> None:
    world.prepare().end(transaction.COMMIT)
    (real,), (op,) = world.records("orders", 2), world.records(transaction.OP_TOPIC)
    assert op.log_position > real.log_position and op.log_position == world.log.end - len(
        world.log.record_at(op.log_position) or b""
    )


def test_a_rollback_stores_only_that_the_half_is_settled(world: World) -> None:
    assert world.prepare().end(transaction.ROLLBACK).code == Response.SUCCESS
    assert world.real == [] and world.ops == [b"0"]
    world.member(1)
    assert world.checks(120_000) == []


def test_an_unknown_state_changes_nothing(world: World) -> None:
    assert world.prepare().end(transaction.UNKNOWN).code == Response.SUCCESS
    assert world.real == [] and world.ops == []


def test_a_message_with_a_delay_is_delayed_from_its_commit_on(world: World) -> None:
    prepared = world.prepare(DELAY="3")
    assert len(world.records(transaction.HALF_TOPIC)) == 1
    prepared.end(transaction.COMMIT)
    assert world.real == [] and [record.body for record in world.records("SCHEDULE_TOPIC_XXXX", 2)] == [b"42 apples"]
    world.pass_time(11_000)
    assert world.real == [b"42 apples"]


def test_a_message_that_is_tried_again_is_no_transaction(world: World) -> None:
    reply = world.ask(310, {**SEND, "j": "1", "i": encode_properties(PROPERTIES)}, body=b"again")
    assert reply.code == Response.SUCCESS and world.real == [b"again"]


# -- what is refused
@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producerGroup": "thieves"}, "The producer group wrong"),
        ({"tranStateTableOffset": "1"}, "The transaction state table offset wrong"),
        ({"commitLogOffset": "7"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "-1"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": str(1 << 62)}, "Find prepared transaction message failed"),
    ],
)
@pytest.mark.parametrize("state", [transaction.COMMIT, transaction.ROLLBACK])
def test_an_end_that_names_no_half_of_its_group_changes_nothing(
    world: World, state: int, changes: dict[str, str], remark: str
) -> None:
    prepared = world.prepare()
    end = world.log.end
    reply = prepared.end(state, **changes)
    assert (reply.code, reply.remark) == (Response.SYSTEM_ERROR, remark)
    assert world.log.end == end


def test_only_a_half_message_can_be_committed(world: World) -> None:
    world.prepare()
    text = encode_properties({"PGROUP": "shop", "REAL_TOPIC": "orders", "REAL_QID": "0"})
    reply = world.ask(310, {**SEND, "i": text}, body=b"plain")
    plain = Prepared(world, int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16), {})
    assert plain.end(transaction.COMMIT).remark == "Find prepared transaction message failed"
    assert world.real == [b"plain"]


@pytest.mark.parametrize("first", [transaction.COMMIT, transaction.ROLLBACK])
@pytest.mark.parametrize("second", [transaction.COMMIT, transaction.ROLLBACK])
def test_a_transaction_ends_once(world: World, first: int, second: int) -> None:
    prepared = world.prepare()
    prepared.end(first)
    reply = prepared.end(second)
    assert reply.code == Response.SYSTEM_ERROR and "settled before" in str(reply.remark)
    assert world.real == ([b"42 apples"] if first == transaction.COMMIT else []) and world.ops == [b"0"]


def test_a_refused_append_leaves_the_transaction_open(world: World) -> None:
    prepared = world.prepare()
    world.log.error = BrokerBusy("busy")
    assert prepared.end(transaction.COMMIT).code != Response.SUCCESS
    world.log.error = None
    assert prepared.end(transaction.COMMIT).code == Response.SUCCESS
    assert world.real == [b"42 apples"]


def test_a_batch_is_no_part_of_a_transaction(world: World) -> None:
    reply = world.ask(320, {**SEND, "i": encode_properties(PROPERTIES)}, body=b"")
    assert reply.code == Response.NO_PERMISSION
    assert world.log.end == 0


def test_a_oneway_end_is_not_answered(world: World) -> None:
    prepared = world.prepare()
    effects = world.effects(Request.END_TRANSACTION, prepared.header(transaction.COMMIT), flag=FLAG_ONEWAY)
    assert not [effect for effect in effects if isinstance(effect, Reply)]
    assert world.real == [b"42 apples"]


# -- the check-back
def test_a_member_is_asked_after_six_seconds_and_every_thirty(world: World) -> None:
    world.member(1)
    world.prepare()
    assert world.checks(5_000) == []
    assert len(world.checks(3_000)) == 1
    assert world.checks(27_000) == []
    assert len(world.checks(3_000)) == 1


def test_what_is_asked_names_the_copy_and_carries_the_message(world: World) -> None:
    world.member(1)
    world.prepare()
    (asked,) = world.checks(8_000)
    _, copy = world.records(transaction.HALF_TOPIC)
    ext = asked.command.ext
    assert asked.connection_id == 1 and asked.command.is_oneway
    assert (ext["tranStateTableOffset"], ext["commitLogOffset"]) == ("1", str(copy.log_position))
    assert (ext["msgId"], ext["transactionId"], ext["topic"]) == ("U1", "U1", "orders")
    assert int(ext["offsetMsgId"][16:], 16) == copy.log_position
    message = stored_record(asked.command.body)
    assert message is not None and (message.topic, message.queue_id, message.body) == ("orders", 2, b"42 apples")
    properties = parse_properties(copy.properties.decode())
    assert (properties["TRANSACTION_CHECK_TIMES"], properties["TRAN_PREPARED_QUEUE_OFFSET"]) == ("1", "0")
    assert world.ops == [b"0"] and world.real == []


def test_the_answer_to_a_check_settles_the_transaction(world: World) -> None:
    world.member(1)
    world.prepare()
    (asked,) = world.checks(8_000)
    assert asked_of(world, asked).end(transaction.COMMIT, fromTransactionCheck="true").code == Response.SUCCESS
    assert world.real == [b"42 apples"] and world.ops == [b"0", b"1"]
    assert world.checks(120_000) == []


def test_a_late_commit_of_the_half_before_the_check_is_the_same_transaction(world: World) -> None:
    world.member(1)
    prepared = world.prepare()
    (asked,) = world.checks(8_000)
    assert prepared.end(transaction.COMMIT).code == Response.SUCCESS
    assert asked_of(world, asked).end(transaction.COMMIT).code == Response.SYSTEM_ERROR
    assert world.real == [b"42 apples"]


def test_an_answer_to_an_earlier_check_counts_too(world: World) -> None:
    world.member(1)
    world.prepare()
    (first,) = world.checks(8_000)
    assert len(world.checks(31_000)) == 1
    assert asked_of(world, first).end(transaction.COMMIT).code == Response.SUCCESS
    assert world.real == [b"42 apples"] and world.checks(120_000) == []


@pytest.mark.parametrize("state", [transaction.COMMIT, transaction.ROLLBACK])
def test_an_end_of_another_message_settles_no_half_that_lies_at_its_place(world: World, state: int) -> None:
    """What lay there was cut off: no slave had it when another broker began to lead."""
    prepared = world.prepare()
    reply = prepared.end(state, msgId="U2", transactionId="U2")
    assert reply.code == Response.SYSTEM_ERROR and reply.remark and "message U1 is where U2 was" in reply.remark
    assert world.real == [] and world.ops == []
    assert prepared.end(transaction.COMMIT).code == Response.SUCCESS and world.real == [b"42 apples"]


def test_an_end_may_name_its_half_by_the_place_alone(world: World) -> None:
    for form in ("", "7F00000100002A9F{:016X}"):
        prepared = world.prepare()
        named = form.format(prepared.position)
        assert prepared.end(transaction.COMMIT, msgId=named, transactionId=named).code == Response.SUCCESS


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_members_take_turns(world: World, count: int) -> None:
    members = set(range(1, count + 1))
    for number in members:
        world.member(number)
    world.member(9, group="others")
    world.prepare()
    assert {asked.connection_id for asked in world.checks(130_000)} == members


def test_a_member_that_is_gone_is_not_asked(world: World) -> None:
    world.member(1)
    world.member(2)
    world.prepare()
    world.broker.disconnected(1, world.now_ms)
    assert {asked.connection_id for asked in world.checks(100_000)} == {2}


def test_after_fifteen_checks_it_is_rolled_back_and_kept_for_people(world: World) -> None:
    world.member(1)
    prepared = world.prepare()
    world.settings.member_expiry_ms = 1 << 40
    effects = world.pass_time(60 * 60_000)
    assert len([effect for effect in effects if isinstance(effect, Notify)]) == 15
    assert any(isinstance(effect, Report) and "rolled back" in effect.text for effect in effects)
    assert [record.body for record in world.records(transaction.GIVEN_UP_TOPIC)] == [b"42 apples"]
    assert prepared.end(transaction.COMMIT).code == Response.SYSTEM_ERROR
    assert world.real == []


def test_properties_that_leave_no_room_for_the_checks_are_refused_when_the_transaction_begins(world: World) -> None:
    world.member(1)
    least, most = 1, PROPERTIES_BYTES_MAX
    while most - least > 1:
        size = (least + most) // 2
        text = encode_properties({**PROPERTIES, "own": "v" * size})
        code = (
            world.ask(310, {**SEND, "i": text}).code if len(text) <= PROPERTIES_BYTES_MAX else Response.MESSAGE_ILLEGAL
        )
        assert code in (Response.SUCCESS, Response.MESSAGE_ILLEGAL)
        least, most = (size, most) if code == Response.SUCCESS else (least, size)
    begun = len(world.records(transaction.HALF_TOPIC))
    assert least > PROPERTIES_BYTES_MAX - 1024 and begun > 1
    world.settings.member_expiry_ms = 1 << 40
    asked = world.checks(16 * 30_000)
    assert len(asked) == 15 * begun
    assert len(world.records(transaction.GIVEN_UP_TOPIC)) == begun


def test_a_half_of_another_broker_that_has_no_room_for_a_check_is_given_up_and_keeps_none_waiting(world: World) -> None:
    world.member(1)
    world.prepare(b"before")
    (half,) = world.records(transaction.HALF_TOPIC)
    own = "v" * (PROPERTIES_BYTES_MAX - 21 - len(half.properties) - len("own\x01\x02") - len(" 1"))
    full = NewRecord(b"full", half.properties + f"own\x01{own}\x02".encode(), sys_flag=half.sys_flag)
    topic = world.tables.topic(transaction.HALF_TOPIC)
    world.log.append(topic, 0, full)
    world.broker.arrived((topic.queues[0],), world.now_ms)
    world.prepare(b"after")
    asked = world.checks(10_000)
    assert sorted(notify.command.body.count(b"before") for notify in asked) == [0, 1]
    assert sorted(notify.command.body.count(b"after") for notify in asked) == [0, 1]
    assert [record.body for record in world.records(transaction.GIVEN_UP_TOPIC)] == [b"full"]


def test_without_members_it_is_given_up_all_the_same(world: World) -> None:
    world.prepare()
    assert world.checks(60 * 60_000) == []
    assert len(world.records(transaction.GIVEN_UP_TOPIC)) == 1 and world.real == []


def test_one_given_up_can_be_asked_about_again(world: World) -> None:
    world.settings.member_expiry_ms = 1 << 40
    world.member(1)
    world.prepare()
    world.pass_time(60 * 60_000)
    (given_up,) = world.records(transaction.GIVEN_UP_TOPIC)
    message_id = f"7F00000100002A9F{given_up.log_position:016X}"
    assert world.ask(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}).code == Response.SUCCESS
    (asked,) = world.checks(8_000)
    assert asked_of(world, asked).end(transaction.COMMIT).code == Response.SUCCESS
    assert world.real == [b"42 apples"]


@pytest.mark.parametrize("steps", ["twice", "twice after a restart", "again after its commit"])
def test_one_given_up_is_resumed_once_however_often_that_is_asked_for(world: World, steps: str) -> None:
    world.settings.member_expiry_ms = 1 << 40
    world.member(1)
    world.prepare()
    world.pass_time(60 * 60_000)
    (given_up,) = world.records(transaction.GIVEN_UP_TOPIC)
    message_id = {"msgId": f"7F00000100002A9F{given_up.log_position:016X}"}
    assert world.ask(Request.RESUME_CHECK_HALF_MESSAGE, message_id).code == Response.SUCCESS
    if "commit" in steps:
        (asked,) = world.checks(8_000)
        assert asked_of(world, asked).end(transaction.COMMIT).code == Response.SUCCESS
    if "restart" in steps:
        world.start()
        world.member(1)
    assert world.ask(Request.RESUME_CHECK_HALF_MESSAGE, message_id).code == Response.SUCCESS
    for asked in world.checks(8_000):
        asked_of(world, asked).end(transaction.COMMIT)
    assert world.real == [b"42 apples"], "exactly one visible copy"


def test_resuming_an_open_one_begins_its_checks_anew(world: World) -> None:
    world.settings.member_expiry_ms = 1 << 40
    world.member(1)
    prepared = world.prepare()
    world.checks(7 * 60_000)
    message_id = f"7F00000100002A9F{prepared.position:016X}"
    assert world.ask(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}).code == Response.SUCCESS
    assert len(world.checks(60 * 60_000)) == 15


@pytest.mark.parametrize("message_id", ["", "xyz", "7F00000100002A9F" + "0" * 16, "7F00000100002A9FFFFFFFFFFFFFFFFF"])
def test_there_is_nothing_to_resume_where_no_half_message_is(world: World, message_id: str) -> None:
    end = world.log.end
    assert world.ask(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}).code == Response.SYSTEM_ERROR
    assert world.log.end == end


def test_a_message_may_be_immune_to_checks_for_longer(world: World) -> None:
    world.member(1)
    world.settings.member_expiry_ms = 1 << 40
    world.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="300")
    assert world.checks(298_000) == []
    assert len(world.checks(4_000)) == 1


def test_the_times_can_be_set(tables: Any, settings: BrokerSettings) -> None:
    quick = replace(settings, transaction_timeout_ms=1000, transaction_interval_ms=2000, transaction_checks_max=2)
    world = World(tables, quick)
    world.member(1)
    world.prepare()
    assert len(world.checks(20_000)) == 2
    assert len(world.records(transaction.GIVEN_UP_TOPIC)) == 1


def test_a_clock_that_is_set_back_keeps_no_member_from_being_asked(world: World) -> None:
    world.member(1)
    world.prepare()
    world.tables.clock -= 86_400_000
    assert len(world.checks(10_000)) == 1


def test_a_busy_log_only_delays_a_check(world: World) -> None:
    world.member(1)
    world.prepare()
    world.log.error = BrokerBusy("busy")
    effects = world.pass_time(9_000)
    assert not [effect for effect in effects if isinstance(effect, Notify)]
    world.log.error = None
    assert len(world.checks(2_000)) == 1


# -- restarts
def test_a_new_broker_goes_on_where_the_last_one_stopped(world: World) -> None:
    world.member(1)
    prepared = world.prepare()
    assert len(world.checks(40_000)) == 2
    world.start()
    world.member(1)
    world.settings.member_expiry_ms = 1 << 40
    assert len(world.checks(10 * 60_000)) == 13
    assert len(world.records(transaction.GIVEN_UP_TOPIC)) == 1
    assert prepared.end(transaction.COMMIT).code == Response.SYSTEM_ERROR


def test_a_broker_that_has_just_begun_counts_no_check_before_a_producer_has_come_back(world: World) -> None:
    world.member(1)
    world.prepare()
    assert len(world.checks(40_000)) == 2
    world.now_ms += 30_000  # nothing leads meanwhile
    world.tables.clock += 30_000
    world.start()
    before = len(world.records(transaction.HALF_TOPIC))
    assert world.checks(GATHERING_MS - 3_000) == []
    assert len(world.records(transaction.HALF_TOPIC)) == before
    world.member(1)
    assert len(world.checks(2_000)) == 1
    copy = world.records(transaction.HALF_TOPIC)[-1]
    assert parse_properties(copy.properties.decode())[transaction.CHECK_TIMES] == "3"


def test_a_broker_whose_producers_do_not_come_back_goes_on_with_its_checks(world: World) -> None:
    world.prepare()
    world.start()
    assert world.checks(6_000 + GATHERING_MS) == []
    assert len(world.records(transaction.HALF_TOPIC)) == 2


def test_a_new_broker_knows_what_was_settled(world: World) -> None:
    prepared, rolled_back = world.prepare(), world.prepare()
    prepared.end(transaction.COMMIT)
    rolled_back.end(transaction.ROLLBACK)
    world.start()
    assert prepared.end(transaction.COMMIT).code == Response.SYSTEM_ERROR
    assert rolled_back.end(transaction.COMMIT).code == Response.SYSTEM_ERROR
    assert world.real == [b"42 apples"]


def test_a_new_broker_knows_which_transaction_a_copy_is(world: World) -> None:
    world.member(1)
    prepared = world.prepare()
    world.checks(8_000)
    world.start()
    assert prepared.end(transaction.COMMIT).code == Response.SUCCESS
    assert world.real == [b"42 apples"]
    world.member(1)
    assert world.checks(120_000) == []


def test_progress_is_written_down_behind_what_is_settled(world: World) -> None:
    group = world.tables.group_put(transaction.TRANSACTION_GROUP)
    done = [world.prepare() for _ in range(5)]
    open_one = world.prepare()
    for prepared in done:
        prepared.end(transaction.COMMIT)
    world.pass_time(2_000)
    half_queue = world.tables.topic(transaction.HALF_TOPIC).queues[0]
    slot = world.tables.offset_slot(group, half_queue)
    assert world.tables.committed(slot) == open_one.offset
    open_one.end(transaction.COMMIT)
    world.pass_time(2_000)
    assert world.tables.committed(slot) == 6
    op_slot = world.tables.offset_slot(group, world.tables.topic(transaction.OP_TOPIC).queues[0])
    assert world.tables.committed(op_slot) == 6


def test_op_records_of_rocketmq_5_settle_several_at_once(world: World) -> None:
    world.member(1)
    for _ in range(4):
        world.prepare()
    world.log.append(world.tables.topic(transaction.OP_TOPIC), 0, NewRecord(b"0,1,3,", transaction.OP_PROPERTIES))
    world.start()
    world.member(1)
    asked = world.checks(10_000)
    assert [stored_record(each.command.body).queue_offset for each in asked] == [4]  # type: ignore[union-attr]
    properties = parse_properties(world.records(transaction.HALF_TOPIC)[4].properties.decode())
    assert properties["TRAN_PREPARED_QUEUE_OFFSET"] == "2"


def test_a_committed_message_whose_op_record_a_power_cut_took_is_not_committed_again(world: World) -> None:
    world.member(1)
    lost, other = world.prepare(b"lost"), world.prepare(b"other")
    lost.end(transaction.COMMIT)
    op_queue = world.tables.topic(transaction.OP_TOPIC).queues[0]
    world.log.records[op_queue].pop()
    world.tables.bounds[op_queue] = QueueBounds(0, 0)
    world.tables.store_facts = StoreFacts(0, world.log.end, 0, 0, 0, 0)
    world.start()
    assert lost.end(transaction.COMMIT).code == Response.SYSTEM_ERROR
    world.member(1)
    asked = world.checks(10_000)
    assert [stored_record(each.command.body).body for each in asked] == [b"other"]  # type: ignore[union-attr]
    assert world.real == [b"lost"] and other.end(transaction.COMMIT).code == Response.SUCCESS


def test_what_retention_deleted_is_not_open(world: World) -> None:
    world.member(1)
    world.prepare()
    world.prepare()
    half_queue = world.tables.topic(transaction.HALF_TOPIC).queues[0]
    world.tables.bounds[half_queue] = QueueBounds(1, 2)
    assert [int(each.command.ext["tranStateTableOffset"]) for each in world.checks(10_000)] == [2]


# -- local producers, as the broker sees them
def local_half(world: World, body: bytes = b"local") -> Prepared:
    """A half that a process of this host stored by itself."""
    if world.tables.topic(transaction.OP_TOPIC) is None:
        world.prepare().end(transaction.ROLLBACK)
    text = encode_properties({**PROPERTIES, "REAL_TOPIC": "orders", "REAL_QID": "2"}).encode()
    stored = world.log.append(world.tables.topic(transaction.HALF_TOPIC), 0, NewRecord(body, text))
    return Prepared(world, stored.queue_offset, stored.log_position, {})


def test_a_half_of_a_local_producer_is_fenced_before_a_member_is_asked(world: World) -> None:
    world.member(1)
    half = local_half(world)
    world.checks(4_000)
    assert world.log.fence == 0
    assert len(world.checks(4_000)) == 1
    assert world.log.fence > half.position


def test_halves_of_tcp_producers_alone_raise_no_fence_when_they_end(world: World) -> None:
    world.prepare().end(transaction.COMMIT)
    assert world.log.fence == 0


def test_what_a_local_producer_settled_while_it_was_fenced_counts(world: World, monkeypatch: Any) -> None:
    half = local_half(world)
    raise_fence = world.log.raise_fence

    def late(log_position: int) -> None:
        # Under the append lock the producer was first: its commit is there when the fence is up.
        world.log.append(world.tables.topic("orders"), 2, NewRecord(b"local", b"", sys_flag=8))
        world.log.append(world.tables.topic(transaction.OP_TOPIC), 0, NewRecord(b"%d" % half.offset))
        raise_fence(log_position)

    monkeypatch.setattr(world.log, "raise_fence", late)
    reply = half.end(transaction.COMMIT)
    assert reply.code == Response.SYSTEM_ERROR and world.real == [b"local"]


def test_a_local_member_is_asked_once_it_says_that_it_answers(world: World) -> None:
    world.tables.topic_put("orders", read_queues=4, write_queues=4, perm=6, flags=0, kind=0)
    world.broker.connected(9, Peer(1, 0, 0, 1, world.settings.pid_namespace), world.now_ms)
    world.clients.add(9)
    connection = world.broker._connections[9]
    connection.client_id = "local"
    beat = HeartbeatData(clientID="local", producerDataSet=[ProducerData(groupName="shop")])
    assert world.ask(Request.HEART_BEAT, {}, body=encode_body(beat), client=9).code == Response.SUCCESS
    world.pass_time(GATHERING_MS)
    world.prepare()
    assert world.checks(8_000) == []
    assert world.ask(Request.ANSWER_CHECKS, {"producerGroup": "shop"}, client=9).code == Response.SUCCESS
    assert [each.connection_id for each in world.checks(31_000)] == [9]


def test_open_transactions_can_be_listed_and_asked_about_at_once(world: World) -> None:
    world.broker.connected(9, Peer(1, 0, 0, 1, world.settings.pid_namespace), world.now_ms)
    world.clients.add(9)
    world.member(1)
    world.prepare()
    world.prepare().end(transaction.COMMIT)
    text = world.ask(Request.TRANSACTIONS, {}, client=9).body.decode()
    assert text.count('"offset"') == 1 and '"key":"o-42"' in text and '"group":"shop"' in text
    effects: Sequence[Effect] = world.effects(Request.CHECK_TRANSACTION, {"tranStateTableOffset": "0"}, client=9)
    assert [effect.connection_id for effect in effects if isinstance(effect, Notify)] == [1]
    reply = world.ask(Request.CHECK_TRANSACTION, {"tranStateTableOffset": "1"}, client=9)
    assert reply.code == Response.SYSTEM_ERROR


def test_tcp_clients_have_no_access_to_our_own_requests(world: World) -> None:
    assert world.ask(Request.TRANSACTIONS, {}).code == Response.REQUEST_CODE_NOT_SUPPORTED
