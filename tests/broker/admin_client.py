"""A client of the broker's logic for tests: it asks, and sees replies and everything else that follows."""

from __future__ import annotations

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.logic.effects import Effect, Notify, Reply
from shmq.daemon.logic.requests import Peer
from shmq.errors import ShmqError
from shmq.protocol.body import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    TopicTable,
    decode_body,
    encode_body,
)
from shmq.protocol.codes import Language, Request
from shmq.protocol.command import FLAG_REPLY, Command
from shmq.protocol.dialect import loads
from shmq.protocol.failure import error_of

LOCAL_END = Address("127.0.0.1", 10911)


class Admin:
    """One attached connection."""

    def __init__(self, broker: Broker, connection_id: int = 1) -> None:
        self.broker = broker
        self.connection_id = connection_id
        broker.connected(connection_id, Peer(connection_id, 0, 0, 5, 4026531836), 0)
        self.client_id = f"admin-{connection_id}"
        self.ask(Request.ATTACH, clientId=self.client_id, role="0")

    def effects(self, code: int, body: bytes = b"", /, **ext: str) -> list[Effect]:
        return self.broker.handle(self.connection_id, Command(code=code, ext=ext, body=body), 0)

    def reply(self, code: int, body: bytes = b"", /, **ext: str) -> Command:
        effect = self.effects(code, body, **ext)[0]
        assert isinstance(effect, Reply)
        return effect.command

    def ask(self, code: int, body: bytes = b"", /, **ext: str) -> Command:
        reply = self.reply(code, body, **ext)
        assert error_of(reply) is None, reply
        return reply

    def fail(self, code: int, body: bytes = b"", /, **ext: str) -> ShmqError:
        error = error_of(self.reply(code, body, **ext))
        assert error is not None
        return error

    def consume(self, group: str, topic: str) -> None:
        beat = HeartbeatData(self.client_id, [ConsumerData(group, [SubscriptionData(topic)])])
        self.ask(Request.HEART_BEAT, encode_body(beat))

    def topics(self) -> TopicTable:
        return decode_body(self.ask(Request.GET_ALL_TOPIC_CONFIG).body, TopicTable)


class RemoteAdmin(Admin):
    """One TCP connection, as a Java client makes it."""

    def __init__(self, broker: Broker, connection_id: int = 1, *, language: Language = Language.JAVA) -> None:
        self.broker = broker
        self.connection_id = connection_id
        self.client_id = f"127.0.0.1@{connection_id}"
        self.language = language
        self.now_ms = 0
        broker.connected(connection_id, None, 0, remote=Address("127.0.0.1", 40000 + connection_id), local=LOCAL_END)

    def effects(self, code: int, body: bytes = b"", /, **ext: str) -> list[Effect]:
        command = Command(code=code, ext=ext, body=body, language=self.language)
        return self.broker.handle(self.connection_id, command, self.now_ms)

    def body(self, code: int, body: bytes = b"", /, **ext: str) -> object:
        """The body of a reply in RocketMQ's dialect."""
        return loads(self.ask(code, body, **ext).body)

    def produce(self, group: str) -> None:
        self.ask(Request.HEART_BEAT, encode_body(HeartbeatData(self.client_id, [], [ProducerData(group)])))

    def answer(self, question: Command, *, code: int = 0, body: bytes = b"", remark: str | None = None) -> list[Effect]:
        """Answer a question of the broker's."""
        reply = Command(code=code, opaque=question.opaque, flag=FLAG_REPLY, body=body, remark=remark)
        return self.broker.handle(self.connection_id, reply, self.now_ms)


def told(effects: list[Effect], code: int) -> list[tuple[int, Command]]:
    """(connection, command) of notices and questions to clients."""
    return [
        (effect.connection_id, effect.command)
        for effect in effects
        if isinstance(effect, Notify) and effect.command.code == code
    ]
