"""The check-back of a transaction, CHECK_TRANSACTION_STATE (39): which member of its group is asked how it ended.

`CheckBack` chooses the member and asks it; `TransactionRequests` serves what our own clients ask about transactions.

    a TCP member of the producer group      is asked; RocketMQ's clients answer with a 37
    a local member                          is asked if it has said that it answers: ANSWER_CHECKS

A question carries the message, and any client may name itself a member of a producer group: only one that may send to
the message's topic is asked. Members take turns from check to check, so one that cannot answer does not keep the others
from it.
"""

from collections.abc import Callable, Sequence

from shmq.daemon.broker.groups.consumer_group import Member
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.records.message_id import offset_message_id
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.daemon.broker.records.stored_record import StoredRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.transactions.half import is_of_local_producer, number_in
from shmq.daemon.broker.transactions.transactions import Transactions
from shmq.daemon.logic.access.rights import Permission, Rights
from shmq.daemon.logic.effects import Effect, Notify
from shmq.daemon.logic.header_fields import number_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, serves
from shmq.errors import RemoteError
from shmq.message import check_group
from shmq.protocol.backlog import OpenTransaction, OpenTransactions
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import oneway
from shmq.protocol.system_topics import transaction
from shmq.shm.core import record_encode


class CheckBack:
    """Asks members of producer groups."""

    def __init__(
        self, registry: GroupRegistry, settings: BrokerSettings, *, rights_of: Callable[[int], Rights]
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._rights_of = rights_of
        self.answering: dict[int, set[str]] = {}  # connection of a local member -> groups it answers for

    def members_of(self, half: StoredRecord) -> list[Member]:
        """Return the members that may be asked about a half."""
        group = property_of(half.properties, transaction.PRODUCER_GROUP) or ""
        topic = property_of(half.properties, transaction.REAL_TOPIC) or ""
        return [
            member
            for _, member in sorted(self._registry.producers().get(group, {}).items())
            if not member.origin.is_local or group in self.answering.get(member.origin.connection_id, ())
            if self._rights_of(member.origin.connection_id).may(topic, Permission.PUB)
        ]

    def ask(self, half: StoredRecord, checks: int) -> Sequence[Effect]:
        """Ask a member how the transaction of a half ended, where there is one."""
        members = self.members_of(half)
        # The half's own offset moves with each check: added to the count it would find every second member only.
        turn = number_in(half, transaction.FIRST_HALF, half.queue_offset) + checks
        return [self._notice(members[turn % len(members)], half)] if members else []

    def _notice(self, member: Member, half: StoredRecord) -> Notify:
        advertised = self._settings.advertised
        topic = property_of(half.properties, transaction.REAL_TOPIC) or ""
        key = property_of(half.properties, transaction.UNIQUE_KEY) or ""
        ext = {
            "topic": topic,
            "bname": self._settings.broker_name,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.log_position),
            "msgId": key,
            "transactionId": key,
            "offsetMsgId": offset_message_id(advertised, half.log_position) if advertised else _id_of(half),
        }
        body = record_encode(
            body=half.body,
            topic=topic.encode(),
            properties=with_properties(half.properties, {}),
            queue_id=number_in(half, transaction.REAL_QUEUE_ID, 0),
            queue_offset=half.queue_offset,
            log_position=half.log_position,
            flag=half.flag,
            sys_flag=half.sys_flag,
            born_ms=half.born_ms,
            store_ms=half.store_ms,
            reconsume_times=half.reconsume_times,
            prepared_position=half.prepared_position,
            born_host=half.born_host,
            store_host=half.store_host,
        )
        return Notify(member.origin.connection_id, oneway(Request.CHECK_TRANSACTION_STATE, ext, body=body))


class TransactionRequests(Part):
    """Serves what our own clients ask about transactions."""

    def __init__(self, transactions: Transactions, check_back: CheckBack, settings: BrokerSettings) -> None:
        self._transactions = transactions
        self._answering = check_back.answering
        self._entries_max = settings.list_entries_max

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Forget a member whose connection is gone."""
        self._answering.pop(connection.connection_id, None)
        return ()

    @serves(Request.ANSWER_CHECKS)
    def _answer(self, call: Call) -> Answer:
        """A local client is about to begin transactions; with `producerGroup` it answers checks of that group."""
        self._transactions.halves.make()
        group = call.ext.get("producerGroup", "")
        if group:
            self._answering.setdefault(call.connection.connection_id, set()).add(check_group(group))
        return Answer()

    @serves(Request.TRANSACTIONS)
    def _list(self, call: Call) -> Answer:
        transactions = self._transactions
        if transactions.halves.locate() and not transactions.ready(call.now_ms):
            raise RemoteError(Response.SYSTEM_BUSY, "open transactions are still being read", hint="try again")
        found = [
            _shown(record, transactions.checks_of(record.queue_offset))
            for record in transactions.listed(self._entries_max)
        ]
        return Answer(body=encode_body(OpenTransactions(len(transactions.halves.open), found)))

    @serves(Request.CHECK_TRANSACTION)
    def _check(self, call: Call) -> Answer:
        """Ask about one transaction now, whenever it was due."""
        effects = self._transactions.check_now(number_of(call.ext, "tranStateTableOffset"), call.now_ms)
        asked = [effect for effect in effects if isinstance(effect, Notify)]
        return Answer(ext={"asked": str(len(asked))}, effects=effects)


def _shown(half: StoredRecord, checks: int) -> OpenTransaction:
    def text(key: str) -> str:
        return property_of(half.properties, key) or ""

    return OpenTransaction(
        topic=text(transaction.REAL_TOPIC),
        queue_id=number_in(half, transaction.REAL_QUEUE_ID, 0),
        group=text(transaction.PRODUCER_GROUP),
        key=text("KEYS"),
        message_id=text(transaction.UNIQUE_KEY) or _id_of(half),
        offset=half.queue_offset,
        log_position=half.log_position,
        store_ms=half.store_ms,
        checks=checks,
        body_bytes=len(half.body),
        local=is_of_local_producer(half),
    )


def _id_of(half: StoredRecord) -> str:
    return f"{half.store_host.hex()}{half.log_position:016x}".upper()
