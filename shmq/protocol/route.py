"""Bodies of the name service: routes, clusters, topic lists, registrations.

RocketMQ writes them in two ways:

    standard    {"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},...   clients from V4_9_4 on, or that ask for it
    unquoted    {"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},...     all others

Rules: (1) no whitespace anywhere and names in sorted order: the Go client cuts `brokerAddrs` apart by hand, at commas
and colons; (2) the standard form is ASCII, the rest escaped, as RocketMQ's is.
"""

from __future__ import annotations

import json

import msgspec

from shmq.message import PERM_READ_WRITE
from shmq.protocol.body import DataVersion, TopicConfig, decode_body, encode_body
from shmq.protocol.command import Command

MASTER_ID = 0
STANDARD_JSON_VERSION = 401  # V4_9_4
DEFAULT_TOPIC = "TBW102"  # producers take its route for a topic that does not exist yet


class QueueData(msgspec.Struct, omit_defaults=False):
    """The queues of a topic on one broker, and its permissions."""

    brokerName: str
    readQueueNums: int = 16
    writeQueueNums: int = 16
    perm: int = PERM_READ_WRITE
    topicSysFlag: int = 0


class BrokerData(msgspec.Struct):
    """The addresses of one broker name: 0 is the master, others are slaves."""

    brokerName: str
    brokerAddrs: dict[int, str] = {}
    cluster: str = ""


class TopicRoute(msgspec.Struct):
    """Body of the answer to GET_ROUTEINFO_BY_TOPIC (RocketMQ's TopicRouteData)."""

    brokerDatas: list[BrokerData] = []
    queueDatas: list[QueueData] = []
    filterServerTable: dict[str, list[str]] = {}
    orderTopicConf: str | msgspec.UnsetType | None = msgspec.UNSET


class ClusterInfo(msgspec.Struct):
    """Body of the answer to GET_BROKER_CLUSTER_INFO."""

    brokerAddrTable: dict[str, BrokerData] = {}
    clusterAddrTable: dict[str, list[str]] = {}


class BrokerMemberGroup(msgspec.Struct):
    """The brokers that serve one broker name."""

    cluster: str
    brokerName: str
    brokerAddrs: dict[int, str] = {}


class MemberGroupBody(msgspec.Struct):
    """Body of the answer to GET_BROKER_MEMBER_GROUP."""

    brokerMemberGroup: BrokerMemberGroup


class TopicList(msgspec.Struct):
    """Body of every answer that lists topics."""

    topicList: list[str] = []
    brokerAddr: str | msgspec.UnsetType | None = msgspec.UNSET


class KVTable(msgspec.Struct):
    """Body of answers with keys and values."""

    table: dict[str, str] = {}


class BrokerVersion(DataVersion, omit_defaults=True):
    """A DataVersion as brokers of RocketMQ 5 write it, too."""

    stateVersion: int = 0


class RegisteredTopics(msgspec.Struct):
    """RocketMQ's TopicConfigSerializeWrapper; brokers before V3_0_11 register with nothing else."""

    topicConfigTable: dict[str, TopicConfig] = {}
    dataVersion: BrokerVersion = msgspec.field(default_factory=BrokerVersion)


class Registration(msgspec.Struct):
    """Body of REGISTER_BROKER, not compressed."""

    topicConfigSerializeWrapper: RegisteredTopics = msgspec.field(default_factory=RegisteredTopics)
    filterServerList: list[str] | None = None


def wants_standard_json(request: Command) -> bool:
    """Say whether the sender of a route request reads keys in quotes only."""
    asked = request.ext.get("acceptStandardJsonOnly", "").lower() == "true"
    return asked or request.version >= STANDARD_JSON_VERSION


def encode_standard(value: msgspec.Struct) -> bytes:
    """Return a body in standard JSON."""
    plain = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def encode_unquoted(value: msgspec.Struct) -> bytes:
    """Return a body in which broker ids stand as keys without quotes."""
    # Imported here because its regular expressions take 2 ms to compile, and current clients do not need them.
    from shmq.protocol.dialect import dumps

    return dumps(msgspec.to_builtins(value))


def encode_route(route: TopicRoute, *, standard: bool) -> bytes:
    """Return a route in the form its reader understands."""
    return encode_standard(route) if standard else encode_unquoted(route)


def decode_route(data: bytes) -> TopicRoute:
    """Return a route of any name server.

    Raises:
        ProtocolError: it is none.
    """
    return decode_body(data, TopicRoute)


def encode_registration(topics: RegisteredTopics) -> bytes:
    """Return the body a broker registers with."""
    return encode_body(Registration(topics, filterServerList=[]))
