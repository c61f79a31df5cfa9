"""Every offered request by every kind of sender, about its own and what is not: nothing foreign is read or changed.

A broker over a real store holds a topic, a group, a half, a pop, a lock, a timed message and staged rows twice: those
of an account, and those of another account. Each request that is offered is sent with every mixture of the two, by no
account, by one with a wrong secret, by an account that lists what it may, and by one that may everything but the
foreign topic and group. A foreign body holds a word that must not appear in any answer.
"""

import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shmq.daemon.logic.access.needs import NEEDS
from shmq.daemon.logic.access.rules import read_rules
from shmq.daemon.logic.access.text import read_access_text
from shmq.message import dead_letter_topic, retry_topic, retry_topic_of
from shmq.properties import encode_properties
from shmq.protocol.acl import sign
from shmq.protocol.batch_body import pack_entry
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.pop import BatchAck, BatchAcks, Receipt, bit_set
from shmq.protocol.request_table import REQUESTS, FieldKind, RequestClass
from shmq.protocol.staged_rows import WHOLE, StagedPart
from shmq.protocol.system_topics import transaction
from shmq.shm.core import record_encode
from tests.broker.durability.live_logic import LOCAL, REMOTE, LiveLogic, live_logic
from tests.tables.rows import every_row

SECRET = b"SECRET"
ATTACKER, OWNER = 1, 2
OWN, FOREIGN = "own", "foreign"
RULES = read_rules(
    read_access_text("""
accounts:
- accessKey: listed1
  secretKey: listed-secret
  topicPerms: [own=PUB|SUB]
  groupPerms: [own-group=SUB]
- accessKey: default1
  secretKey: default-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [foreign=DENY]
  groupPerms: [foreign-group=DENY]
""")
)
ACCOUNTS = {"listed1": "listed-secret", "default1": "default-secret"}
WAITING = ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", transaction.HALF_TOPIC, transaction.OP_TOPIC]
OFFERED = [
    spec
    for spec in REQUESTS.values()
    if spec.answers == "broker" and spec.asks != "local" and spec.request_class is not RequestClass.REFUSED
]
SPOKEN_OF = ("topic", "group", "record", "transaction", "pop", "rows")


class World:
    """What there is, of the account and of another one; places of things by whose they are."""

    def __init__(self, logic: LiveLogic) -> None:
        self.logic = logic
        logic.broker.connected(OWNER, None, logic.now_ms, remote=REMOTE, local=LOCAL)
        self.position: dict[str, int] = {}
        self.half: dict[str, tuple[int, int]] = {}
        self.receipt: dict[str, Receipt] = {}
        self.handle: dict[str, str] = {}
        for whose in (OWN, FOREIGN):
            self.make(whose)
        assert self.transactions.ready(logic.now_ms), "the open halves are known"
        logic.admission.rules = RULES

    def make(self, whose: str) -> None:
        logic, secret = self.logic, SECRET if whose == FOREIGN else b"plain"
        logic.tables.topic_put(whose, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        beat = HeartbeatData(f"{whose}-client", [consumer(whose)], [ProducerData(f"{whose}-producers")])
        self.ask(Request.HEART_BEAT, {}, encode_body(beat))
        for _ in range(3):
            self.send(whose, secret)
        self.position[whose] = logic.stored(whose)[0].log_position
        timed = self.send(whose, secret, TIMER_DELAY_MS="3600000", UNIQ_KEY=f"{whose}-timed")
        self.handle[whose] = timed.ext["recallHandle"]
        self.send(whose, secret, DELAY="2")
        self.send(whose, secret, TRAN_MSG="true", PGROUP=f"{whose}-producers", UNIQ_KEY=f"{whose}-half")
        half = logic.stored(transaction.HALF_TOPIC)[-1]
        self.half[whose] = half.log_position, half.queue_offset
        popped = self.ask(Request.POP_MESSAGE, fields_of(Request.POP_MESSAGE, self, dict.fromkeys(SPOKEN_OF, whose)))
        first = int(popped.ext["startOffsetInfo"].split()[2])
        pop_ms = int(popped.ext["popTime"])
        self.receipt[whose] = Receipt(first, pop_ms, 60_000, 0, "0", "test", 0, first)
        place = dict.fromkeys(SPOKEN_OF, whose)
        self.ask(Request.LOCK_BATCH_MQ, {}, body_of(Request.LOCK_BATCH_MQ, self, place, client=f"{whose}-client"))
        self.ask(Request.STAGE_ROWS, fields_of(Request.STAGE_ROWS, self, place), rows(secret))

    def ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        reply = self.logic.replies[self.logic.ask(code, ext, body, connection_id=OWNER)]
        assert reply.code == Response.SUCCESS, (code, reply)
        return reply

    def send(self, topic: str, body: bytes, **properties: str) -> Command:
        fields = dict(zip("abcdefgh", ("p", topic, "TBW102", 1, 0, 0, 0, 0), strict=True))
        return self.ask(Request.SEND_MESSAGE_V2, fields | {"i": encode_properties(properties)}, body)

    def foreign_state(self) -> dict[str, Any]:
        """Everything of the other account that a request could change."""
        tables, broker = self.logic.tables, self.logic.broker
        names = [FOREIGN, retry_topic("foreign-group"), dead_letter_topic("foreign-group"), f"{FOREIGN}-new"]
        topics = {name: tables.topic(name) for name in names}
        group = tables.group("foreign-group")
        assert group is not None
        slots = tables.group_offsets(group)
        counts = tables.offset_counts()
        return {
            "topics": topics,
            "bounds": [tables.queue_bounds(topic.queues[0]) for topic in topics.values() if topic is not None],
            "offsets": {
                queue: (tables.committed(slot), counts[16 * slot : 16 * slot + 16]) for queue, slot in slots.items()
            },
            "settings": tables.group_settings(group),
            "members": sorted(broker._registry.members("foreign-group")),
            "producers": sorted(broker._registry.producers().get("foreign-producers", {})),
            "halves": self.half[FOREIGN][1] in self.transactions.halves.open,
            "popped": {key: set(found.unsettled) for key, found in self.popped() if key.topic == FOREIGN},
            "rows": {
                key: list(found.chunks) for key, found in self.rows.state.attempts.items() if key.writer == FOREIGN
            },
            "units": [key for key in self.rows.state.units if key.writer == FOREIGN],
            "timers": [key for key in broker._timers._cancelled._due if key.startswith(FOREIGN)],
            "locks": [tables.offset_lock(slot, 99, 0, 0) for slot in slots.values()],
        }

    def popped(self) -> list[tuple[Any, Any]]:
        return [(found.key, found) for found in self.logic.broker._pops._state.checkpoints]

    @property
    def transactions(self) -> Any:
        return next(part for part in self.logic.broker._parts if type(part).__name__ == "Transactions")

    @property
    def rows(self) -> Any:
        return next(part for part in self.logic.broker._parts if type(part).__name__ == "Rows")

    def stored_of_account(self) -> bytes:
        """All that lies where the account may read."""
        names = [OWN, retry_topic("own-group"), dead_letter_topic("own-group"), retry_topic_of("own-group", OWN)]
        return b"".join(body for name in names for body in self.logic.bodies(name))


def consumer(whose: str) -> ConsumerData:
    return ConsumerData(f"{whose}-group", [SubscriptionData(whose)], messageModel="CLUSTERING")


def rows(body: bytes) -> bytes:
    return pack_entry(body, b"UNIQ_KEY\x01k\x02")


def fields_of(code: int, world: World, place: dict[str, str]) -> dict[str, Any]:
    """Header fields of a request about things of these owners; what names nothing has a value that is possible."""
    topic, group = place["topic"], f"{place['group']}-group"
    position, half = world.position.get(place["record"], 0), world.half.get(place["transaction"], (0, 0))
    receipt = world.receipt.get(place["pop"])
    writer = place["rows"]
    known: dict[str, Any] = {
        "topic": topic, "b": topic, "consumerGroup": group, "group": group, "groupName": group, "a": "p",
        "producerGroup": f"{place['transaction']}-producers", "clientID": f"{place['group']}-client",
        "commitLogOffset": half[0], "tranStateTableOffset": half[1], "commitOrRollback": transaction.COMMIT,
        "recallHandle": world.handle.get(place["record"], ""), "msgId": "", "c": "TBW102", "defaultTopic": "TBW102",
        "commitOffset": 2, "maxMsgNums": 1, "invisibleTime": 60_000, "sysFlag": 3, "subscription": "*", "maxNum": 8,
        "key": f"{place['record']}-timed", "endTimestamp": 1 << 60, "queueEnd": 99, "expressionType": "TAG",
        "writer": writer, "attempt": f"{writer}-attempt", "unit": WHOLE, "rows": 1, "checksum": 0, "batch": 1,
        "offset": position, "delayLevel": -1, "extraInfo": str(receipt or ""), "delayMs": 0,
    }  # fmt: skip
    if code in (Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME) and receipt is not None:
        known["offset"] = receipt.offset
    if code in (Request.SEND_MESSAGE, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE):
        known["sysFlag"] = 0
    found: dict[str, Any] = {}
    for field in REQUESTS[code].fields:
        missing = "x" if field.kind is FieldKind.TEXT else "false" if field.kind is FieldKind.BOOL else 0
        value = known.get(field.name, missing if field.is_mandatory else None)
        if value is not None and (field.is_mandatory or field.name in known):
            found[field.name] = value
    found.pop("batch", None) if code == Request.SEND_MESSAGE else None
    return found


def body_of(code: int, world: World, place: dict[str, str], *, client: str = "attacker") -> bytes:
    """The body of a request about things of these owners."""
    topic, group = place["topic"], f"{place['group']}-group"
    queue = {"topic": topic, "brokerName": "test", "queueId": 0}
    receipt = world.receipt.get(place["pop"], Receipt(0, 0, 0, 0, "0", "test", 0, 0))
    ack = BatchAck(
        group,
        topic,
        "0",
        receipt.first_offset,
        0,
        0,
        receipt.pop_ms,
        60_000,
        bit_set(receipt.first_offset, [receipt.offset]),
    )
    writer = place["rows"]
    bodies: dict[int, bytes] = {
        Request.HEART_BEAT: encode_body(
            HeartbeatData(client, [ConsumerData(group, [SubscriptionData(topic)], messageModel="CLUSTERING")])
        ),
        Request.LOCK_BATCH_MQ: json.dumps({"consumerGroup": group, "clientId": client, "mqSet": [queue]}).encode(),
        Request.UNLOCK_BATCH_MQ: json.dumps(
            {"consumerGroup": group, "clientId": f"{place['group']}-client", "mqSet": [queue]}
        ).encode(),
        Request.CHECK_CLIENT_CONFIG: json.dumps({"group": group, "subscriptionData": {"topic": topic}}).encode(),
        Request.QUERY_ASSIGNMENT: json.dumps(
            {"consumerGroup": group, "topic": topic, "clientId": client, "strategyName": "AVG"}
        ).encode(),
        Request.BATCH_ACK_MESSAGE: encode_body(BatchAcks("test", [ack])),
        Request.COMMIT_ROWS: msgspec.json.encode([StagedPart(0, f"{writer}-attempt", 1)]),
        Request.STAGE_ROWS: rows(b"x"),
        Request.SEND_BATCH_MESSAGE: rows(b"x"),
    }
    return bodies.get(code, b"x" if code in _SENDS else b"")


_SENDS = (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_REPLY_MESSAGE, Request.SEND_REPLY_MESSAGE_V2)


@contextlib.contextmanager
def fresh_world() -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="shmq-") as folder,
        live_logic(Path(folder), flush_sync=False, transaction_timeout_ms=0) as logic,
    ):
        yield World(logic)


@pytest.fixture
def world() -> Iterator[World]:
    with fresh_world() as world:
        yield world


def asked(world: World, ext: dict[str, Any], body: bytes, code: int, who: str, secret: str) -> Command | None:
    fields = {name: str(value) for name, value in ext.items()}
    signed = sign(fields, body, access_key=who, secret_key=secret) if who else fields
    return world.logic.replies.get(world.logic.ask(code, signed, body, connection_id=ATTACKER))


def leaks(world: World, reply: Command | None) -> bool:
    told = [command for connection_id, command in world.logic.notices if connection_id == ATTACKER]
    answers = [*told, *([reply] if reply is not None else [])]
    text = b"".join(answer.body + str(answer.ext).encode() + (answer.remark or "").encode() for answer in answers)
    return SECRET in text or SECRET in world.stored_of_account()


def places() -> list[dict[str, str]]:
    """Every mixture of own and foreign, the one without anything foreign first."""
    return [dict(zip(SPOKEN_OF, mixture, strict=True)) for mixture in itertools.product((OWN, FOREIGN), repeat=6)]


def test_every_offered_code_of_a_client_says_what_it_reads_and_changes() -> None:
    clients = {spec.code for spec in OFFERED if spec.request_class is RequestClass.CLIENT}
    assert clients == set(NEEDS) - {Request.GET_ROUTEINFO_BY_TOPIC}  # of the name server, under the same rules
    for code, row in NEEDS.items():
        assert row.reads or row.changes or code == Request.CHECK_CLIENT_CONFIG, code


@every_row("spec", OFFERED, ids=lambda spec: spec.code.name)
def test_nothing_foreign_is_read_or_changed(spec: Any) -> None:
    with fresh_world() as world:
        judge_what_is_foreign(world, spec)


def judge_what_is_foreign(world: World, spec: Any) -> None:
    """Ask for one code with every mixture of own and foreign, under each account and without one."""
    before = world.foreign_state()
    seen: set[tuple[str, bytes]] = set()
    for who in ("", "wrong", *ACCOUNTS):
        for place in places()[::-1] if who in ACCOUNTS else places()[-1:] + places()[:1]:
            if FOREIGN not in place.values() and who in ACCOUNTS:
                continue
            ext, body = fields_of(spec.code, world, place), body_of(spec.code, world, place)
            key = who + str(sorted(ext.items())), body
            if key in seen:
                continue
            seen.add(key)
            account, secret = ("listed1", "no-secret") if who == "wrong" else (who, ACCOUNTS.get(who, ""))
            reply = asked(world, ext, body, spec.code, account, secret)
            what = f"{who or 'no account'} {place}: {reply}"
            assert not leaks(world, reply), what
            assert world.foreign_state() == before, what
            if who not in ACCOUNTS or spec.request_class is not RequestClass.CLIENT:
                assert reply is not None and is_refusal(reply), what


@every_row("who", ACCOUNTS)
@every_row(
    "code", [spec.code for spec in OFFERED if spec.request_class is RequestClass.CLIENT], ids=lambda code: code.name
)
def test_what_is_its_own_an_account_may_read_and_change(code: Request, who: str) -> None:
    place = dict.fromkeys(SPOKEN_OF, OWN)
    with fresh_world() as world:
        reply = asked(world, fields_of(code, world, place), body_of(code, world, place), code, who, ACCOUNTS[who])
    assert reply is None or not is_refusal(reply), reply


@every_row("topic", WAITING)
@every_row("code", [Request.PULL_MESSAGE, Request.READ_RANGE, Request.POP_MESSAGE, Request.PEEK_MESSAGE])
def test_permissions_by_default_do_not_open_the_topics_where_messages_wait(code: Request, topic: str) -> None:
    place = dict.fromkeys(SPOKEN_OF, OWN) | {"topic": topic}
    with fresh_world() as world:
        reply = asked(world, fields_of(code, world, place), b"", code, "default1", ACCOUNTS["default1"])
        assert reply is not None and is_refusal(reply) and not leaks(world, reply)


def test_a_record_in_a_message_is_no_record(world: World) -> None:
    """A client that may send can write a record into a message, at the very position that it names."""
    _, offset = world.half[FOREIGN]

    def forged(position: int) -> bytes:
        names = {"PGROUP": "own-producers", "REAL_TOPIC": OWN, "REAL_QID": "0"}
        properties = encode_properties(names).encode()
        topic = transaction.HALF_TOPIC.encode()
        return record_encode(
            body=b"x", topic=topic, properties=properties, queue_id=0, queue_offset=offset, log_position=position
        )

    def send(body: bytes) -> int:
        """Send it; return the log position where the body lies."""
        place = dict.fromkeys(SPOKEN_OF, OWN)
        fields = fields_of(Request.SEND_MESSAGE_V2, world, place)
        reply = asked(world, fields, body, Request.SEND_MESSAGE_V2, "listed1", "listed-secret")
        assert reply is not None and reply.code == Response.SUCCESS
        record = world.logic.stored(OWN)[-1]
        data = world.logic.log.stored_at(record.log_position)
        assert data is not None
        return record.log_position + data.index(body)

    begin = world.logic.store.log_end
    inside = send(forged(0)) - begin
    place = world.logic.store.log_end + inside
    assert send(forged(place)) == place
    assert world.logic.log.stored_at(place) is not None, "a record is read there"
    before = world.foreign_state()
    fields = {"producerGroup": "own-producers", "tranStateTableOffset": offset, "commitLogOffset": place, "msgId": ""}
    reply = asked(world, fields | {"commitOrRollback": 8}, b"", Request.END_TRANSACTION, "listed1", "listed-secret")
    assert reply is not None and reply.code != Response.SUCCESS
    back = {"group": "own-group", "offset": place, "delayLevel": 1}
    reply = asked(world, back, b"", Request.CONSUMER_SEND_MSG_BACK, "listed1", "listed-secret")
    assert reply is not None and reply.code != Response.SUCCESS
    assert world.foreign_state() == before


def test_who_may_not_send_to_a_topic_is_not_asked_how_its_transactions_ended(world: World) -> None:
    """A question carries the message, and any client may say that it is a member of a producer group."""
    beat = encode_body(
        HeartbeatData("attacker", [], [ProducerData("foreign-producers"), ProducerData("own-producers")])
    )
    reply = asked(world, {}, beat, Request.HEART_BEAT, "listed1", "listed-secret")
    assert reply is not None and reply.code == Response.SUCCESS
    world.logic.turns()
    told = [command for connection_id, command in world.logic.notices if connection_id == ATTACKER]
    assert not leaks(world, None)
    assert {command.ext["topic"] for command in told if command.code == Request.CHECK_TRANSACTION_STATE} <= {OWN}


def test_a_writer_of_rows_is_one_of_its_account_and_no_other_can_ask_or_end_it(world: World) -> None:
    def about(code: int, who: str, **changes: Any) -> Command:
        place = dict.fromkeys(SPOKEN_OF, OWN)
        fields = fields_of(code, world, place) | {"writer": "nightly", "attempt": "a1"} | changes
        body = (
            body_of(code, world, place)
            if code != Request.COMMIT_ROWS
            else msgspec.json.encode([StagedPart(0, "a1", 1)])
        )
        reply = asked(world, fields, body, code, who, ACCOUNTS[who])
        assert reply is not None
        return reply

    assert about(Request.STAGE_ROWS, "default1").ext["state"] == "staged"
    assert about(Request.STAGE_ROWS, "listed1", chunk=1).code != Response.SUCCESS, "it is no part of the other's"
    about(Request.DROP_ROWS, "listed1")
    committed = about(Request.COMMIT_ROWS, "default1", rows=77)
    assert (committed.code, committed.ext["rows"]) == (Response.SUCCESS, "77")
    assert about(Request.STAGED_STATE, "default1").ext["rows"] == "77"
    assert about(Request.STAGED_STATE, "listed1").ext == {"state": ""}
    assert about(Request.STAGE_ROWS, "listed1", batch=9).ext["state"] == "staged"
    about(Request.COMMIT_ROWS, "listed1", batch=9)
    assert about(Request.STAGE_ROWS, "default1", batch=2).ext["state"] == "staged", "no other has moved its batch"


def is_refusal(reply: Command) -> bool:
    """Whether the answer says that the sender may not."""
    remark = reply.remark or ""
    marks = ("No permission", "No accessKey", "No acl config", "Check signature", "Need admin", "not supported")
    return reply.code != Response.SUCCESS and any(mark in remark for mark in marks)
