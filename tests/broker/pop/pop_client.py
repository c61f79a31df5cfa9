"""A broker, a clock, and clients of POP that speak to it."""

import base64
import json
from typing import Any

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.stored_record import StoredRecord, records_of
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.figures import Figures
from shmq.daemon.broker.tables import Topic
from shmq.daemon.logic.effects import Effect, Reply, Report, Wake
from shmq.message import pop_retry_flag, popped_topic, retry_topic_of
from shmq.properties import parse_properties
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.pop import Receipt, parse_receipt, parse_start_offsets
from tests.broker.record_log import RecordLog

INVISIBLE_MS = 60_000
CLUSTER = "DefaultCluster"


class PopClient:
    """TCP connections that pop, a log to put messages into, and a clock for all; `skew_ms` sets the log's clock."""

    def __init__(
        self, tables: Any, settings: BrokerSettings, *, queues: int = 1, figures: Figures | None = None
    ) -> None:
        self.tables, self.settings, self.figures = tables, settings, figures
        self.log = RecordLog(tables)
        tables.topic_put("orders", read_queues=queues, write_queues=queues, perm=6, flags=0, kind=0)
        self.now_ms = 5_000_000
        self.skew_ms = tables.clock - self.now_ms
        self.reports: list[str] = []
        self.replies: dict[int, list[Command]] = {}
        self.wake_at_ms: int | None = None
        self.opaque = 0
        self.start()

    def start(self) -> None:
        """Start as a new process, which knows only what the tables and the log hold."""
        self.broker = Broker(self.tables, self.settings, now_ms=self.now_ms, log=self.log, figures=self.figures)
        for connection_id in (1, 2, 3):
            self.broker.connected(
                connection_id, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911)
            )

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.tables.clock = now_ms + self.skew_ms

    def take_in(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Report):
                self.reports.append(effect.text)
            elif isinstance(effect, Reply):
                self.replies.setdefault(effect.connection_id, []).append(effect.command)
            elif isinstance(effect, Wake):
                wake_at_ms = self.now_ms + effect.after_ms
                self.wake_at_ms = min(wake_at_ms, self.wake_at_ms or wake_at_ms)
        return effects

    def tick(self) -> list[Effect]:
        return self.take_in(self.broker.tick(self.now_ms))

    def run(self, until_ms: int) -> None:
        """Tick each second and wake when asked, up to a time."""
        tick = self.now_ms
        while True:
            self.at(min(tick, self.wake_at_ms or tick))
            if self.now_ms > until_ms:
                self.at(until_ms)
                return
            if self.wake_at_ms is not None and self.wake_at_ms <= self.now_ms:
                self.wake_at_ms = None
                self.take_in(self.broker.woken(self.now_ms))
            if self.now_ms >= tick:
                self.tick()
                tick = self.now_ms + 1000

    def topic(self, name: str = "orders") -> Topic:
        topic = self.tables.topic(name)
        assert topic is not None, f"no topic {name}"
        return topic

    def put(self, *bodies: bytes, queue_id: int = 0, text: str = "", tells: bool = False) -> None:
        for body in bodies:
            self.log.append(self.topic(), queue_id, NewRecord(body, text.encode()))
        if tells:
            self.take_in(self.broker.arrived([self.topic().queues[queue_id]], self.now_ms))

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, connection: int = 1) -> Any:
        """Send a request; the reply, or None while it is held."""
        self.opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items()}
        command = Command(code=code, opaque=self.opaque, ext=fields, body=body)
        before = len(self.replies.get(connection, ()))
        self.take_in(self.broker.handle(connection, command, self.now_ms))
        replies = self.replies.get(connection, [])[before:]
        return next((reply for reply in replies if reply.opaque == self.opaque), None)

    def pop_fields(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": INVISIBLE_MS,
            "pollTime": 0,
            "bornTime": self.now_ms,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        return {**fields, **changes}

    def pop(self, connection: int = 1, **changes: Any) -> Any:
        return self.ask(Request.POP_MESSAGE, self.pop_fields(**changes), connection=connection)

    def popped(self, **changes: Any) -> list["PoppedMessage"]:
        reply = self.pop(**changes)
        assert reply is not None
        return messages_of(reply)

    def ack(self, message: "PoppedMessage", group: str = "g", **changes: Any) -> Command:
        reply: Command = self.ask(Request.ACK_MESSAGE, {**message.settling(group), **changes})
        return reply

    def change(self, message: "PoppedMessage", invisible_ms: int, group: str = "g") -> Command:
        fields = {**message.settling(group), "invisibleTime": invisible_ms}
        reply: Command = self.ask(Request.CHANGE_MESSAGE_INVISIBLETIME, fields)
        return reply

    def batch_ack(self, *messages: "PoppedMessage", group: str = "g") -> Command:
        first = messages[0].receipt
        bits = sum(1 << (message.receipt.offset - first.first_offset) for message in messages)
        ack = {
            "c": group,
            "t": "orders",
            "r": first.retry_flag,
            "so": first.first_offset,
            "q": first.queue_id,
            "rq": first.revive_queue,
            "pt": first.pop_ms,
            "it": first.invisible_ms,
            "b": base64.b64encode(bits.to_bytes(8, "little")).decode(),
        }
        body = json.dumps({"brokerName": first.broker, "acks": [ack]}).encode()
        reply: Command = self.ask(Request.BATCH_ACK_MESSAGE, body=body)
        return reply

    def retries(self, group: str = "g") -> list[NewRecord]:
        name = retry_topic_of(group, "orders")
        return self.log.stored(self.topic(name), 0) if self.tables.topic(name) else []

    def dead(self, group: str = "g") -> list[NewRecord]:
        name = f"%DLQ%{group}"
        return self.log.stored(self.topic(name), 0) if self.tables.topic(name) else []

    def committed(self, group: str = "g", queue_id: int = 0, topic: str = "orders") -> int:
        slot = self.tables.offset_slot(self.tables.group(group), self.topic(topic).queues[queue_id])
        return -1 if slot is None else int(self.tables.committed(slot))


class PoppedMessage:
    """A message as a client sees it: with the receipt that the reply's header and the record make."""

    def __init__(self, record: StoredRecord, receipt: Receipt, tries: int, topic: str) -> None:
        self.record, self.receipt, self.tries, self.topic = record, receipt, tries, topic

    @property
    def body(self) -> bytes:
        return self.record.body

    def settling(self, group: str) -> dict[str, Any]:
        receipt = self.receipt
        return {
            "consumerGroup": group,
            "topic": popped_topic(group, self.topic, receipt.retry_flag),
            "queueId": receipt.queue_id,
            "offset": receipt.offset,
            "extraInfo": str(receipt),
        }


def messages_of(reply: Command, broker: str = "default") -> list[PoppedMessage]:
    """What RocketMQ's client makes of a reply."""
    if reply.code != 0:
        assert not reply.body
        return []
    starts = parse_start_offsets(reply.ext["startOffsetInfo"])
    entries = [entry.rsplit(" ", 1) for entry in reply.ext.get("orderCountInfo", "").split(";") if entry]
    counts = {name: int(tries) for name, tries in entries}
    found = []
    for record in records_of(reply.body):
        text = parse_properties(record.properties.decode()).get("POP_CK")
        flag = pop_retry_flag(record.topic)
        receipt = (
            parse_receipt(text)
            if text
            else Receipt(
                starts[flag, record.queue_id],
                int(reply.ext["popTime"]),
                int(reply.ext["invisibleTime"]),
                int(reply.ext["reviveQid"]),
                flag,
                broker,
                record.queue_id,
                record.queue_offset,
            )
        )
        tries = counts.get(f"0 qo{record.queue_id}%{record.queue_offset}", record.reconsume_times)
        found.append(PoppedMessage(record, receipt, tries, record.topic))
    return found
