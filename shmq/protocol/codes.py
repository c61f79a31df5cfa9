"""Numbers of the remoting protocol: request and response codes, languages, the version we claim.

Owns which number means what. It does not know who serves a code or what its fields are.

Codes from 30001 on are shmq's own and exist on the local control socket only; RocketMQ uses none of them.
"""

from __future__ import annotations

from enum import IntEnum

# Position of V4_9_8 in RocketMQ's table of versions. Clients read it from replies to decide what they may ask for,
# so it must not claim more than is served.
PROTOCOL_VERSION = 409


class Codec(IntEnum):
    """How a header is encoded; the first byte after a frame's length."""

    JSON = 0
    BINARY = 1


class Language(IntEnum):
    """What a peer is written in."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Request(IntEnum):
    """Request codes that shmq serves or sends."""

    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    GET_CONSUMER_LIST_BY_GROUP = 38
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    DELETE_SUBSCRIPTIONGROUP = 207
    DELETE_TOPIC_IN_BROKER = 215
    ATTACH = 30001
    OFFSET_SLOTS = 30002
    STATUS = 30003


class Response(IntEnum):
    """Response codes that shmq sends or tells apart."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FLOW_CONTROL = 215


class TopicKind(IntEnum):
    """What a topic promises; the names are those of RocketMQ's topic attribute `message.type`."""

    NORMAL = 0
    FIFO = 1
    DELAY = 2
    TRANSACTION = 3


class Role(IntEnum):
    """What a local process wants from the shared segments; NONE attaches without a client slot."""

    NONE = 0
    READER = 1
    WRITER = 2
    BOTH = 3
