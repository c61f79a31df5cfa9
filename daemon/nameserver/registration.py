"""What a broker says about itself: bytes of REGISTER_BROKER in, a checked `Claim` out.

That body has three forms.

    plain         {"filterServerList":[],"topicConfigSerializeWrapper":{...}}
    old           the wrapper alone, before V3_0_11
    compressed    zlib of   int, DataVersion · int topics · { int, topic text } · int, filter servers · more in 5.x
                  topic text = name readQueueNums writeQueueNums perm filterType [attributes]

Invariants:
 1. Whatever the bytes are, the outcome is a Claim or a ProtocolError.
 2. Lengths are checked before they are used; a stream inflates to at most `inflated_bytes_max`.
 3. Names and addresses of a Claim hold nothing that has a meaning in the bodies they are written into.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from shmq.daemon.logic.header_fields import INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Call
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import ProtocolError
from shmq.protocol.body import TopicConfig, decode_body
from shmq.protocol.route import BrokerVersion, RegisteredTopics, Registration

NAME_CHARACTERS_MAX = 255
_FILTER_SERVER_VERSION = 37  # V3_0_11
_TOPIC_FIELDS_MIN = 5
_INT = Struct(">i")
CRC_MASK = 0x7FFFFFFF

# Visible ASCII, without what separates or encloses in JSON, in orderTopicConf and in the Go client's own reader.
_NAME = re.compile(r"[!-~]{1,255}", re.ASCII)
_SEPARATORS = frozenset('"\\{},;:')
_ADDRESS = re.compile(
    r"(?:[A-Za-z0-9._-]{1,253}|\[?[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,32})?\]?):([0-9]{1,5})", re.ASCII
)


class QueueEntry(NamedTuple):
    """A topic's queues on one broker."""

    read_queues: int
    write_queues: int
    perm: int
    flags: int


class Version(NamedTuple):
    """A broker's DataVersion: equal means that none of its topics has changed."""

    state: int = 0
    timestamp: int = 0
    counter: int = 0

    @classmethod
    def of(cls, version: BrokerVersion) -> Version:
        """Return what a body said."""
        return cls(version.stateVersion, version.timestamp, version.counter)

    def to_body(self) -> BrokerVersion:
        """Return what a body says."""
        return BrokerVersion(counter=self.counter, timestamp=self.timestamp, stateVersion=self.state)


_FRESH = Version()  # of a broker that says nothing about its topics


class Identity(NamedTuple):
    """Which broker speaks, and where it is reached."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One registration, checked."""

    identity: Identity
    ha_address: str = ""
    expiry_ms: int = 0  # 0: the name server's own
    version: Version = _FRESH
    topics: dict[str, QueueEntry] = field(default_factory=dict)
    skipped: int = 0  # topics whose names no route can carry
    filter_servers: tuple[str, ...] | None = None


def check_name(kind: str, name: str) -> str:
    """Return the name of a broker, cluster or topic unchanged; a ProtocolError when no route can carry it."""
    if not is_name(name):
        raise ProtocolError(
            f"the {kind} {name[:64]!a} is not 1 to {NAME_CHARACTERS_MAX} visible ASCII characters "
            'without any of " \\ { } , ; :'
        )
    return name


def is_name(name: str) -> bool:
    """Say whether a name can be carried by a route."""
    return _NAME.fullmatch(name) is not None and _SEPARATORS.isdisjoint(name)


def check_address(field_name: str, address: str) -> str:
    """Return a host:port unchanged; a ProtocolError when it is none."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 1 << 16:
        raise ProtocolError(f"the field {field_name} is {address[:64]!a}; host:port is needed")
    return address


def read_identity(call: Call) -> Identity:
    """Return who a broker's request speaks for."""
    ext = call.ext
    return Identity(
        cluster=check_name("cluster name", text_of(ext, "clusterName")),
        broker_name=check_name("broker name", text_of(ext, "brokerName")),
        broker_id=number_of(ext, "brokerId"),
        address=check_address("brokerAddr", text_of(ext, "brokerAddr")),
    )


def read_claim(call: Call, settings: NameServerSettings) -> Claim:
    """Return what a REGISTER_BROKER says.

    Raises:
        ProtocolError: it breaks the format or a limit.
    """
    identity = read_identity(call)
    ha_address = check_address("haServerAddr", text_of(call.ext, "haServerAddr"))
    asked_ms = number_of(call.ext, "heartbeatTimeoutMillis", default=0)
    expiry_ms = min(max(asked_ms, settings.expiry_ms_min), settings.expiry_ms_max) if asked_ms else 0
    body = call.command.body
    _check_crc(body, number_of(call.ext, "bodyCrc32", default=0))
    if not body:
        registration = Registration()
    elif flag_of(call.ext, "compressed"):
        registration = _inflated(body, settings.inflated_bytes_max)
    elif call.command.version < _FILTER_SERVER_VERSION:
        registration = Registration(decode_body(body, RegisteredTopics))
    else:
        registration = decode_body(body, Registration)
    wrapper = registration.topicConfigSerializeWrapper
    filter_servers = registration.filterServerList
    if filter_servers is not None:
        if len(filter_servers) > settings.filter_servers_max:
            raise ProtocolError(f"{len(filter_servers)} filter servers; {settings.filter_servers_max} are allowed")
        filter_servers = [check_address("filterServerList", address) for address in filter_servers]
    if len(wrapper.topicConfigTable) > settings.topics_max:
        raise ProtocolError(f"{len(wrapper.topicConfigTable)} topics; {settings.topics_max} are allowed")
    topics = {name: queue_entry(config) for name, config in wrapper.topicConfigTable.items() if is_name(name)}
    return Claim(
        identity,
        ha_address,
        expiry_ms,
        Version.of(wrapper.dataVersion),
        topics,
        skipped=len(wrapper.topicConfigTable) - len(topics),
        filter_servers=tuple(filter_servers) if filter_servers is not None else None,
    )


GONE = QueueEntry(0, 0, 0, 0)
"""What is registered of a topic that was deleted: a stock name server keeps it, without any permission."""


def queue_entry(config: TopicConfig) -> QueueEntry:
    """Return the queues a topic's configuration describes; a ProtocolError when they are impossible."""
    entry = QueueEntry(config.readQueueNums, config.writeQueueNums, config.perm, config.topicSysFlag)
    for number in entry:
        if not 0 <= number <= INT32_MAX:
            raise ProtocolError(
                f"topic {config.topicName[:64]!a} has the number {number}; 0 to {INT32_MAX} are possible"
            )
    return entry


def _check_crc(body: bytes, expected: int) -> None:
    if expected and zlib.crc32(body) & CRC_MASK != expected:
        raise ProtocolError("crc32 not match")


def _inflated(body: bytes, bytes_max: int) -> Registration:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise ProtocolError(f"the registration does not inflate: {error}") from error
    if inflater.unconsumed_tail:
        raise ProtocolError(f"the registration inflates to more than {bytes_max} bytes")
    reader = _Pieces(data)
    version = decode_body(reader.piece(), BrokerVersion)
    count = reader.number()
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):  # each turn takes bytes, so a lying count ends at the end of the data
        config = _topic_config(reader.piece())
        topics[config.topicName] = config
    filter_servers = decode_body(reader.piece(), list[str])
    return Registration(RegisteredTopics(topics, version), filter_servers)


def _topic_config(data: bytes) -> TopicConfig:
    fields = data.decode(errors="replace").split(" ")
    if len(fields) < _TOPIC_FIELDS_MIN or not all(re.fullmatch("[0-9]{1,10}", text, re.ASCII) for text in fields[1:4]):
        raise ProtocolError(f"no topic: {data[:64]!a}; name readQueueNums writeQueueNums perm filterType is needed")
    read_queues, write_queues, perm = map(int, fields[1:4])
    return TopicConfig(fields[0], read_queues, write_queues, perm)


class _Pieces:
    """Reads what stands behind lengths."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self) -> int:
        start = self._position
        if start + _INT.size > len(self._data):
            raise ProtocolError(f"the registration ends at byte {start} of what it inflates to")
        (value,) = _INT.unpack_from(self._data, start)
        if value < 0:
            raise ProtocolError(f"the number {value} at byte {start} of the registration")
        self._position = start + _INT.size
        return int(value)

    def piece(self) -> bytes:
        size = self.number()
        start = self._position
        if size > len(self._data) - start:
            raise ProtocolError(f"a piece of {size} bytes; {len(self._data) - start} follow")
        self._position = start + size
        return self._data[start : self._position]
