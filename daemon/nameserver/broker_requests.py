"""Serves brokers at a name server: register, unregister, still alive.

They are the requests 103, 104, 322, 217, 901 and 904.

A request that speaks for a broker is taken from the host that registered it, and from this host. A broker that
registers may name any address, because one behind NAT has to; `match_addresses` narrows that to where it comes from.
"""

from shmq.addresses import host_of
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, serves
from shmq.daemon.nameserver.addresses import is_this_host, peer_host, reached_address, reached_ha_address
from shmq.daemon.nameserver.admin_requests import ConfigRequests
from shmq.daemon.nameserver.key_values import ORDER_NAMESPACE, KeyValues
from shmq.daemon.nameserver.registration import (
    Identity,
    QueueEntry,
    Version,
    check_name,
    queue_entry,
    read_claim,
    read_identity,
)
from shmq.daemon.nameserver.registry import EMBEDDED, Member, Registry
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import PermissionDenied
from shmq.protocol.body import TopicConfig, decode_body, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.route import (
    MASTER_ID,
    BrokerMemberGroup,
    BrokerVersion,
    KVTable,
    MemberGroupBody,
    decode_route,
    encode_unquoted,
)


class BrokerRequests(Part):
    """Serves brokers."""

    def __init__(
        self, registry: Registry, key_values: KeyValues, config: ConfigRequests, settings: NameServerSettings
    ) -> None:
        self._registry = registry
        self._key_values = key_values
        self._config = config
        self._settings = settings

    @serves(Request.REGISTER_BROKER)
    def _register(self, call: Call) -> Answer:
        claim = read_claim(call, self._settings)
        host = peer_host(call.connection)
        if self._settings.match_addresses and not is_this_host(host) and host_of(claim.identity.address) != host:
            raise PermissionDenied(
                f"{claim.identity.address} may not be registered from {host}",
                hint="set brokerIP1 in broker.conf to the address the name server sees",
            )
        is_new = self._registry.member(claim.identity) is None
        self._registry.register(claim, connection_id=call.connection.connection_id, host=host, now_ms=call.now_ms)
        ext: dict[str, str] = {}
        entry = self._registry.broker(claim.identity.broker_name)
        master = entry.members.get(MASTER_ID) if entry else None
        if claim.identity.broker_id != MASTER_ID and master is not None:
            ext = {
                "haServerAddr": reached_ha_address(master, call.connection),
                "masterAddr": reached_address(master, call.connection),
            }
            ext = {name: value for name, value in ext.items() if value}
        order = self._key_values.namespace(ORDER_NAMESPACE)
        wants_order = self._config.is_on("returnOrderTopicConfigToBroker")
        body = encode_body(KVTable(dict(order))) if order and wants_order else b""
        reports = [_news(claim.identity, claim.skipped)] if is_new else []
        return Answer(ext=ext, body=body, reports=reports)

    @serves(Request.UNREGISTER_BROKER)
    def _unregister(self, call: Call) -> Answer:
        identity = read_identity(call)
        member = self._registry.member(identity)
        if member is not None:
            _check_speaker(member, call.connection)
            self._registry.unregister(identity)
            return Answer(reports=[f"{_shown(member.identity)} has left"])
        return Answer()

    @serves(Request.QUERY_DATA_VERSION)
    def _query_version(self, call: Call) -> Answer:
        identity = read_identity(call)
        asked = Version.of(decode_body(call.command.body, BrokerVersion)) if call.command.body else Version()
        member = self._registry.member(identity)
        if member is None:
            return Answer(ext={"changed": "true"})
        is_changed = member.version != asked
        if not is_changed:
            self._renew(member, call)
        return Answer(ext={"changed": "true" if is_changed else "false"}, body=encode_body(member.version.to_body()))

    @serves(Request.BROKER_HEARTBEAT)
    def _heartbeat(self, call: Call) -> Answer:
        entry = self._registry.broker(text_of(call.ext, "brokerName"))
        address = text_of(call.ext, "brokerAddr")
        for member in list(entry.members.values()) if entry else []:
            if member.address == address:
                self._renew(member, call)
        return Answer()

    def _renew(self, member: Member, call: Call) -> None:
        if member.connection_id != EMBEDDED and member.host == peer_host(call.connection):
            member.seen_ms = call.now_ms

    @serves(Request.REGISTER_TOPIC_IN_NAMESRV)
    def _register_topic(self, call: Call) -> Answer:
        topic = check_name("topic", text_of(call.ext, "topic"))
        queues: dict[str, QueueEntry] = {}
        for data in decode_route(call.command.body).queueDatas if call.command.body else []:
            entry = self._registry.broker(data.brokerName)
            for member in entry.members.values() if entry else ():
                _check_speaker(member, call.connection)
            config = TopicConfig(
                topic, data.readQueueNums, data.writeQueueNums, data.perm, topicSysFlag=data.topicSysFlag
            )
            queues[data.brokerName] = queue_entry(config)
        self._registry.add_queues(topic, queues)
        return Answer()

    @serves(Request.GET_BROKER_MEMBER_GROUP)
    def _member_group(self, call: Call) -> Answer:
        name = text_of(call.ext, "brokerName")
        entry = self._registry.broker(name)
        members = entry.members if entry is not None else {}
        addresses = {broker_id: reached_address(member, call.connection) for broker_id, member in members.items()}
        cluster = entry.cluster if entry is not None else call.ext.get("clusterName", "")
        return Answer(body=encode_unquoted(MemberGroupBody(BrokerMemberGroup(cluster, name, addresses))))


def _check_speaker(member: Member, connection: Connection) -> None:
    host = peer_host(connection)
    name, broker_id = member.identity.broker_name, member.identity.broker_id
    if member.connection_id == EMBEDDED:
        raise PermissionDenied(f"broker {name!a} is embedded in this name server", hint="stop it with: shmq stop")
    if member.host != host and not is_this_host(host):
        raise PermissionDenied(f"broker {name!a} with id {broker_id} is registered from {member.host}, not from {host}")


def _news(identity: Identity, skipped: int) -> str:
    left_out = f"; {skipped} topics left out, no route can carry their names" if skipped else ""
    return f"{_shown(identity)} is registered{left_out}"


def _shown(identity: Identity) -> str:
    return f"broker {identity.broker_name} ({identity.broker_id}, {identity.address}) of {identity.cluster}"
