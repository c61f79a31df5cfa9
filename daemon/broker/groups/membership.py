"""Heartbeats, goodbyes and member lists.

They are the requests 34, 35, 38 and 46. The broker tells the other members of a change when it turns the answer into
effects.
"""

from shmq.daemon.broker.groups.consumer_group import Origin
from shmq.daemon.broker.groups.refusals import RefusedSubscriptions
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.groups.selection import TAG, select
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Names
from shmq.daemon.broker.topics import UNIT_RETRY_FLAG
from shmq.daemon.logic.access.client_ids import ClientIds
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import ProtocolError, RemoteError, SegmentFull, ShmqError, UsageError
from shmq.message import GROUP_BYTES_MAX, PERM_READ_WRITE, TOPIC_BYTES_MAX, retry_topic
from shmq.protocol.body import (
    ClientConfig,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    decode_body,
    decode_heartbeat,
    encode_body,
)
from shmq.protocol.codes import Request, Response
from shmq.protocol.failure import failure_reply

_SHOWN_CHARACTERS, _REASON_CHARACTERS = 128, 512


class Membership(Part):
    """Serves what members say about themselves."""

    def __init__(
        self,
        tables: Names,
        registry: GroupRegistry,
        groups: GroupSettings,
        settings: BrokerSettings,
        client_ids: ClientIds,
        refused: RefusedSubscriptions,
    ) -> None:
        self._tables = tables
        self._client_ids = client_ids
        self._refused = refused
        self._registry = registry
        self._groups = groups
        self._settings = settings
        self._without_retries: set[str] = set()

    @serves(Request.HEART_BEAT)
    def _heartbeat(self, call: Call) -> Answer:
        connection = call.connection
        beat = decode_heartbeat(call.command.body)
        if not beat.clientID:
            raise ProtocolError("a heartbeat without a client id")
        if connection.is_local:
            if not connection.is_attached:
                raise UsageError("a heartbeat before ATTACH", hint="attach first")
            if beat.clientID != connection.client_id:
                raise ProtocolError(f"a heartbeat of {beat.clientID[:64]!a} from client {connection.client_id!a}")
        origin = Origin(connection.connection_id, connection.is_local, call.command.language, call.command.version)
        try:
            self._registry.check(origin, beat, call.now_ms)
            self._client_ids.use(beat.clientID, call.rights, call.now_ms)
        except ShmqError as error:
            if connection.is_local:
                raise  # our own clients tell their users
            reports = [line for data in beat.consumerDataSet for line in self._refuse(call, beat, data, str(error))]
            reply = failure_reply(call.command, error)
            return Answer(code=reply.code, remark=reply.remark, ext=reply.ext, reports=reports)
        # The tables may refuse for want of room, so they come before the member is registered.
        reports = []
        for data in beat.consumerDataSet:
            reports += self._look_at(call, beat, data)
            self._tables.group_put(data.groupName)
            if not connection.is_local or _wants_retry_topic(data) or self._is_shown(data):
                reports += self._make_retry_topic(data)
        change = self._registry.heartbeat(origin, beat, call.now_ms)
        return Answer(changed_groups=change.groups, reports=[*reports, *change.reports])

    def _look_at(self, call: Call, beat: HeartbeatData, data: ConsumerData) -> list[str]:
        """Say what of a subscription cannot be served; the member is registered all the same, as in RocketMQ."""
        for entry in data.subscriptionDataSet:
            try:
                select(entry.subString, entry.expressionType, self._settings)
            except ShmqError as error:
                return self._refuse(call, beat, data, f"its subscription to {entry.topic}: {error}")
        self._refused.forget(data.groupName, beat.clientID)
        return []

    def _refuse(self, call: Call, beat: HeartbeatData, data: ConsumerData, reason: str) -> list[str]:
        group, client_id = data.groupName[:GROUP_BYTES_MAX], beat.clientID[:_SHOWN_CHARACTERS]
        address = str(call.connection.remote or "this host")
        return self._refused.add(group, client_id, address, reason[:_REASON_CHARACTERS], call.now_ms)

    def _is_shown(self, data: ConsumerData) -> bool:
        """RocketMQ's tools find the brokers of a group, local or not, by the route of its retry topic."""
        return self._settings.serves_tcp and len(retry_topic(data.groupName)) <= TOPIC_BYTES_MAX

    def _make_retry_topic(self, data: ConsumerData) -> list[str]:
        """Make it if need be; return what to report when there is no room, once for each group.

        Consuming goes on without it: sending a message back is then refused with the reason.
        """
        name = retry_topic(data.groupName)
        queues = self._groups.of(data.groupName).retryQueueNums
        if self._tables.topic(name) is not None or queues <= 0:
            self._without_retries.discard(data.groupName)
            return []
        if len(name) > TOPIC_BYTES_MAX:
            return self._goes_without(data.groupName, f"it would have {len(name)} characters")
        flags = UNIT_RETRY_FLAG if data.unitMode else 0
        try:
            self._tables.topic_put(
                name, read_queues=queues, write_queues=queues, perm=PERM_READ_WRITE, flags=flags, kind=0
            )
        except SegmentFull as error:
            return self._goes_without(data.groupName, str(error))
        return []

    def _goes_without(self, group: str, reason: str) -> list[str]:
        if group in self._without_retries:
            return []
        self._without_retries.add(group)
        return [f'group "{group}" consumes without retries: {retry_topic(group)} cannot be made: {reason}']

    @serves(Request.UNREGISTER_CLIENT)
    def _unregister(self, call: Call) -> Answer:
        change = self._registry.unregister(
            call.connection.connection_id,
            text_of(call.ext, "clientID"),
            producer_group=call.ext.get("producerGroup", ""),
            consumer_group=call.ext.get("consumerGroup", ""),
            now_ms=call.now_ms,
        )
        return Answer(changed_groups=change.groups, reports=change.reports)

    @serves(Request.CHECK_CLIENT_CONFIG)
    def _check_config(self, call: Call) -> Answer:
        """Check a filter other than tags for a consumer that has not started yet."""
        asked = decode_body(call.command.body, ClientConfig) if call.command.body else ClientConfig()
        wanted = asked.subscriptionData
        if wanted and wanted.expressionType not in (None, "", TAG):
            select(wanted.subString, wanted.expressionType, self._settings)  # its error says where the fault is
        return Answer()

    @serves(Request.GET_CONSUMER_LIST_BY_GROUP)
    def _list(self, call: Call) -> Answer:
        group = text_of(call.ext, "consumerGroup")
        # `topic` is our addition: RocketMQ's clients do not send it, and divide every topic among all listed members.
        members = self._registry.sharers(group, call.ext.get("topic", ""))
        if not members:
            raise RemoteError(Response.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return Answer(body=encode_body(ConsumerList(members)))


def _wants_retry_topic(data: ConsumerData) -> bool:
    return any(entry.topic == retry_topic(data.groupName) for entry in data.subscriptionDataSet)
