"""Replies: stored where a local requester reads them, pushed to one that is connected over TCP."""

from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Notify, Reply
from shmq.daemon.logic.requests import Peer
from shmq.errors import BrokerBusy
from shmq.properties import encode_properties, parse_properties
from shmq.protocol.body import HeartbeatData, ProducerData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.request_reply import REPLY_QUEUES, reply_topic

LOCAL = Address("127.0.0.1", 10911)
TOPIC = reply_topic("DefaultCluster")
REQUESTER, REPLIER = 1, 2
PROPERTIES = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.9@1", "TTL": "500"}
LONG = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp")
LONG += ("flag", "properties", "reconsumeTimes", "unitMode")
VALUES = ("replies", TOPIC, "TBW102", "4", "0", "0", "77", "5", "", "0", "false")


class Conversation:
    """A broker with a requester and a replier."""

    def __init__(self, tables: Any, log: Any, settings: BrokerSettings) -> None:
        self.tables, self.log = tables, log
        self.broker = Broker(tables, replace(settings, serves_tcp=True), now_ms=0, log=log)
        for number in (REQUESTER, REPLIER):
            self.broker.connected(number, None, 0, remote=Address("10.0.0.9", 40000 + number), local=LOCAL)
        beat = HeartbeatData("10.0.0.9@1", [], [ProducerData("asking")])
        self.broker.handle(REQUESTER, Command(code=Request.HEART_BEAT, opaque=1, body=encode_body(beat)), 0)

    def reply(self, code: int = 325, *, flag: int = 0, topic: str = TOPIC, **properties: str | None) -> list[Effect]:
        pairs = {name: value for name, value in (PROPERTIES | properties).items() if value is not None}
        names = LONG if code == Request.SEND_REPLY_MESSAGE else "abcdefghijk"
        ext = dict(zip(names, VALUES, strict=True))
        ext["properties" if names is LONG else "i"] = encode_properties(pairs)
        ext["topic" if names is LONG else "b"] = topic
        return self.broker.handle(REPLIER, Command(code=code, opaque=7, ext=ext, body=b"42", flag=flag), 0)

    def stored(self, queue_id: int) -> list[Any]:
        queue = self.tables.topic(TOPIC).queues[queue_id]
        return [record for _, record, _ in self.log.records.get(queue, ())]


@pytest.fixture
def talk(tables: Any, log: Any, settings: BrokerSettings) -> Conversation:
    return Conversation(tables, log, settings)


def answers(effects: list[Effect]) -> list[Command]:
    return [effect.command for effect in effects if isinstance(effect, Reply) and effect.connection_id == REPLIER]


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_is_pushed_to_the_requester_and_the_replier_hears_when_it_is_there(
    talk: Conversation, code: int
) -> None:
    effects = talk.reply(code)
    assert not answers(effects)
    (push,) = [effect for effect in effects if isinstance(effect, Notify)]
    assert (push.connection_id, push.command.code, push.command.body) == (REQUESTER, 326, b"42")
    assert not push.command.is_oneway
    ext = dict(push.command.ext)
    pushed = parse_properties(ext.pop("properties"))
    assert pushed.pop("PUSH_REPLY_TIME") == ext.pop("storeTimestamp") == str(talk.tables.clock_ms)
    assert pushed == PROPERTIES
    assert ext == {
        **{name: value for name, value in zip(LONG, VALUES, strict=True) if name != "properties"},
        "bornHost": "10.0.0.9:40002",
        "storeHost": "127.0.0.1:10911",
    }
    (answer,) = answers(talk.broker.handle(REQUESTER, push.command.reply(), 1))
    assert (answer.code, answer.opaque, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, 7, "0", "0")
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    (record,) = talk.stored(0)
    assert record.body == b"42" and parse_properties(record.properties.decode()).items() >= PROPERTIES.items()


def test_a_local_repliers_reply_has_addresses_java_can_read(talk: Conversation) -> None:
    talk.broker.connected(9, Peer(100, 1000, 1000, 1, 1), 0)
    names = dict(zip("abcdefghijk", VALUES, strict=True)) | {"i": encode_properties(PROPERTIES)}
    effects = talk.broker.handle(9, Command(code=325, opaque=7, ext=names, body=b"42"), 0)
    (push,) = [effect for effect in effects if isinstance(effect, Notify)]
    for name in ("bornHost", "storeHost"):
        host, _, port = push.command.ext[name].rpartition(":")
        assert host == "127.0.0.1" and port.isdecimal()


def test_a_requester_that_refuses_or_does_not_answer_is_a_failed_push(talk: Conversation) -> None:
    (push,) = [effect for effect in talk.reply() if isinstance(effect, Notify)]
    (answer,) = answers(talk.broker.handle(REQUESTER, push.command.reply(1), 1))
    assert answer.code == Response.SYSTEM_ERROR and answer.remark == "push reply message to 10.0.0.9@1fail."
    talk.reply()
    assert not answers(talk.broker.tick(9_999))
    (answer,) = answers(talk.broker.tick(10_001))
    assert answer.code == Response.SYSTEM_ERROR
    talk.reply()
    (answer,) = answers(talk.broker.disconnected(REQUESTER, 10_002))
    assert answer.code == Response.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("requester", "remark"),
    [
        ("10.0.0.9@7", "push reply message fail, channel of <10.0.0.9@7> not found."),
        (None, "push reply message fail, properties[REPLY_TO_CLIENT] is null"),
    ],
)
def test_a_reply_without_a_requester_is_stored_and_said_to_be_not_delivered(
    talk: Conversation, requester: str | None, remark: str
) -> None:
    (answer,) = answers(talk.reply(REPLY_TO_CLIENT=requester))
    assert (answer.code, answer.remark) == (Response.SYSTEM_ERROR, remark)
    assert len(talk.stored(0)) == 1


def test_a_reply_to_a_local_process_is_stored_in_the_queue_it_reads(talk: Conversation) -> None:
    (answer,) = answers(talk.reply(REPLY_TO_CLIENT="shm:3:host@1#2"))
    assert (answer.code, answer.ext["queueId"]) == (0, "3")
    assert len(talk.stored(3)) == 1 and not talk.stored(0)


def test_an_address_behind_the_last_queue_is_refused_and_nothing_is_stored(talk: Conversation) -> None:
    (answer,) = answers(talk.reply(REPLY_TO_CLIENT=f"shm:{REPLY_QUEUES}:x"))
    assert answer.code == Response.SYSTEM_ERROR and f"queue {REPLY_QUEUES}" in (answer.remark or "")
    assert not any(talk.stored(queue_id) for queue_id in range(REPLY_QUEUES))


def test_a_reply_passes_the_checks_of_a_send(talk: Conversation) -> None:
    (answer,) = answers(talk.reply(topic="SCHEDULE_TOPIC_XXXX"))
    assert answer.code == Response.NO_PERMISSION


def test_a_reply_that_cannot_be_stored_is_pushed_all_the_same(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> Any:
        raise BrokerBusy("the append lock is taken")

    monkeypatch.setattr(talk.log, "append", busy)
    (push,) = [effect for effect in talk.reply() if isinstance(effect, Notify)]
    (answer,) = answers(talk.broker.handle(REQUESTER, push.command.reply(), 1))
    assert (answer.code, answer.ext["msgId"]) == (0, "0")


def test_a_oneway_reply_is_pushed_and_not_answered(talk: Conversation) -> None:
    effects = talk.reply(flag=FLAG_ONEWAY)
    (push,) = [effect for effect in effects if isinstance(effect, Notify)]
    assert not answers(effects) and not answers(talk.broker.handle(REQUESTER, push.command.reply(), 1))


def test_a_reply_does_not_wait_for_the_disk(tables: Any, log: Any, settings: BrokerSettings) -> None:
    talk = Conversation(tables, log, replace(settings, wait_durable=True))
    (answer,) = answers(talk.reply(REPLY_TO_CLIENT="shm:3:host@1#2"))
    assert answer.code == 0
