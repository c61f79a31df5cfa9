"""Reading what a broker says about itself: three forms of a body, and no form that does harm."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmq.daemon.logic.requests import Call, Connection
from shmq.daemon.nameserver.registration import Claim, QueueEntry, Version, check_address, is_name, read_claim
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import ProtocolError
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from tests.nameserver.desk import registration_body, topic_config
from tests.tables.rows import every_row

SETTINGS = NameServerSettings()
FIELDS = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
}


def claim_of(body: bytes, *, version: int = 409, settings: NameServerSettings = SETTINGS, **ext: str) -> Claim:
    command = Command(Request.REGISTER_BROKER, ext=FIELDS | ext, body=body, version=version)
    return read_claim(Call(Connection(1, None, 0), command, 0), settings)


def piece(data: bytes | str) -> bytes:
    encoded = data.encode() if isinstance(data, str) else data
    return struct.pack(">i", len(encoded)) + encoded


def compressed_body(*topics: str, filters: str = "[]", more: bytes = b"") -> bytes:
    """What a broker with compressedRegister=true sends."""
    version = piece('{"counter":7,"timestamp":1700000000000}')
    data = version + struct.pack(">i", len(topics)) + b"".join(map(piece, topics)) + piece(filters) + more
    return zlib.compress(data)


def test_a_plain_body_is_read() -> None:
    claim = claim_of(registration_body(topic_config("orders", 8, perm=4, flags=2), counter=3))
    assert claim.identity == ("DefaultCluster", "broker-a", 0, "10.0.0.1:10911")
    assert claim.topics == {"orders": QueueEntry(8, 8, 4, 2)}
    assert claim.version == Version(counter=3, timestamp=1700000000000)
    assert (claim.ha_address, claim.filter_servers, claim.skipped) == ("10.0.0.1:10912", (), 0)


# Captured: the first REGISTER_BROKER of a stock 4.9.7 broker with compressedRegister=true, and its bodyCrc32.
CAPTURED = bytes.fromhex(
    "78da63606050af564ace2fcd2b492d52b232d0512ac9cc4d2d2e49cc2d50b23234b734353433b33030343536ad656060e00062b560670f57"
    "97501fd7f810ff004fe7f808205030b400213385604f3f77908ca33b50a5b64b6a5a62694e89734e6931d0f4f820d7009f48882e05432044"
    "53aee2949a979c919b58941d02748082a1819109844053a7ecefe616ec1a12efeb1fe6ea12ef1ae6ea1782cd38c9a4a2fcecd422dd44b0a4"
    "39aaa478885338d06c050b204493520876f5718b0f710d0ec1ed5445549f29189a81109a414cd1b100283a5969"
)
CAPTURED_CRC = "535601240"


def test_the_compressed_body_of_a_stock_broker_is_read() -> None:
    claim = claim_of(CAPTURED, version=407, compressed="true", bodyCrc32=CAPTURED_CRC)
    assert claim.topics == {
        "SCHEDULE_TOPIC_XXXX": QueueEntry(18, 18, 6, 0),
        "SELF_TEST_TOPIC": QueueEntry(1, 1, 6, 0),
        "DefaultCluster": QueueEntry(16, 16, 7, 0),
        "DefaultCluster_REPLY_TOPIC": QueueEntry(1, 1, 6, 0),
        "broker-a": QueueEntry(1, 1, 7, 0),
        "TBW102": QueueEntry(8, 8, 7, 0),
        "BenchmarkTest": QueueEntry(1024, 1024, 6, 0),
        "OFFSET_MOVED_EVENT": QueueEntry(1, 1, 6, 0),
    }
    assert (claim.version.counter, claim.filter_servers) == (0, ())


def test_a_body_of_rocketmq_5_is_read() -> None:
    topic = {**topic_config("orders"), "attributes": {"message.type": "FIFO"}}
    wrapper = {
        "dataVersion": {"counter": 1, "stateVersion": 5, "timestamp": 2},
        "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
        "topicConfigTable": {"orders": topic},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
    claim = claim_of(body, version=479, heartbeatTimeoutMillis="60000", enableActingMaster="false")
    assert claim.version == Version(state=5, timestamp=2, counter=1)
    assert claim.topics.keys() == {"orders"} and claim.expiry_ms == 60_000


def test_no_body_is_a_broker_without_topics() -> None:
    claim = claim_of(b"")
    assert (claim.topics, claim.version, claim.filter_servers) == ({}, Version(), None)


def test_a_broker_before_3_0_11_sends_the_wrapper_alone() -> None:
    wrapper = json.loads(registration_body(topic_config("orders")))["topicConfigSerializeWrapper"]
    assert claim_of(json.dumps(wrapper).encode(), version=36).topics.keys() == {"orders"}


def test_a_compressed_body_is_read() -> None:
    topics = ("orders 8 4 6 SINGLE_TAG", 'bills 1 1 4 MULTI_TAG {"message.type":"FIFO"}')
    claim = claim_of(compressed_body(*topics, filters='["10.0.0.9:30000"]'), compressed="true")
    assert claim.topics == {"orders": QueueEntry(8, 4, 6, 0), "bills": QueueEntry(1, 1, 4, 0)}
    assert claim.version == Version(counter=7, timestamp=1700000000000)
    assert claim.filter_servers == ("10.0.0.9:30000",)


def test_what_rocketmq_5_adds_behind_a_compressed_body_is_left_alone() -> None:
    more = struct.pack(">i", 1) + piece('{"bname":"b","topic":"orders","totalQueues":8}')
    body = compressed_body("orders 8 8 6 SINGLE_TAG", more=more)
    assert claim_of(body, version=479, compressed="true").topics.keys() == {"orders"}


@pytest.mark.parametrize("compressed", ["true", "false"])
def test_the_crc_is_checked_when_it_is_given(compressed: str) -> None:
    body = compressed_body("t 1 1 6 SINGLE_TAG") if compressed == "true" else registration_body(topic_config("t"))
    crc = zlib.crc32(body) & 0x7FFFFFFF
    for accepted in (str(crc), "0"):
        assert claim_of(body, compressed=compressed, bodyCrc32=accepted).topics.keys() == {"t"}
    with pytest.raises(ProtocolError, match="crc32 not match"):
        claim_of(body, compressed=compressed, bodyCrc32=str(crc ^ 1))


def test_a_bomb_is_given_up_at_the_limit() -> None:
    bomb = zlib.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than 4194304 bytes"):
            claim_of(bomb, compressed="true")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [-1, -(1 << 31), 1 << 30, (1 << 31) - 1])
def test_a_lying_length_is_refused(length: int) -> None:
    for data in (struct.pack(">i", length), piece("{}") + struct.pack(">ii", 1, length)):
        with pytest.raises(ProtocolError):
            claim_of(zlib.compress(data), compressed="true")
    with pytest.raises(ProtocolError):
        claim_of(zlib.compress(piece("{}") + struct.pack(">i", length)), compressed="true")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_any_bytes_give_a_claim_or_a_protocol_error(data: bytes, deflate: bool, compressed: bool) -> None:
    with contextlib.suppress(ProtocolError):
        claim_of(zlib.compress(data) if deflate else data, compressed=str(compressed).lower())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_damage_to_a_compressed_body_gives_a_claim_or_a_protocol_error(data: Any) -> None:
    plain = bytearray(zlib.decompress(compressed_body("orders 8 8 6 SINGLE_TAG", "bills 1 1 4 SINGLE_TAG")))
    for _ in range(data.draw(st.integers(1, 4))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(plain)))
    with contextlib.suppress(ProtocolError):
        claim_of(zlib.compress(bytes(plain[:cut])), compressed="true")


@every_row(
    ("name", "value"),
    [
        ("brokerAddr", "10.0.0.1"),
        ("brokerAddr", "10.0.0.1:0"),
        ("brokerAddr", "10.0.0.1:65536"),
        ("brokerAddr", '10.0.0.1","1":"evil:1'),
        ("brokerAddr", "a,1:evil:1"),
        ("brokerAddr", " 10.0.0.1:10911"),
        ("brokerAddr", ":10911"),
        ("haServerAddr", "nonsense"),
        ("brokerName", "a b"),
        ("brokerName", 'a"'),
        ("brokerName", "a:4;b"),
        ("brokerName", "ü"),
        ("brokerName", "x" * 256),
        ("clusterName", "{"),
        ("brokerId", "-1"),
        ("brokerId", "one"),
        ("heartbeatTimeoutMillis", "soon"),
    ],
)
def test_what_would_break_a_route_is_refused(name: str, value: str) -> None:
    with pytest.raises(ProtocolError):
        claim_of(b"", **{name: value})


@every_row("address", ["h:1", "10.0.0.1:65535", "[::1]:10911", "::1:10911", "fe80::1%e0:1", "a-b.c_d:2"])
def test_every_form_of_address_that_brokers_use_is_taken(address: str) -> None:
    assert check_address("brokerAddr", address) == address


def test_topics_no_route_can_carry_are_left_out_and_counted() -> None:
    names = ["good", "host.example", "%RETRY%group", 'bad"', "bad name", ""]
    claim = claim_of(registration_body(*map(topic_config, names)))
    assert claim.topics.keys() == {name for name in names if is_name(name)} == {"good", "host.example", "%RETRY%group"}
    assert claim.skipped == 3


def test_impossible_queue_counts_are_refused() -> None:
    for number in (-1, 1 << 31):
        with pytest.raises(ProtocolError):
            claim_of(registration_body(topic_config("t", number)))


@pytest.mark.parametrize(("asked", "granted"), [("1", 10_000), ("90000", 90_000), ("999999999", 600_000)])
def test_a_broker_may_choose_its_expiry_within_bounds(asked: str, granted: int) -> None:
    assert claim_of(b"", heartbeatTimeoutMillis=asked).expiry_ms == granted


def test_more_topics_or_filter_servers_than_allowed_are_refused() -> None:
    settings = NameServerSettings(topics_max=2, filter_servers_max=1)
    with pytest.raises(ProtocolError, match="3 topics; 2 are allowed"):
        claim_of(registration_body(*map(topic_config, "abc")), settings=settings)
    body = json.dumps({"filterServerList": ["a:1", "b:1"]}).encode()
    with pytest.raises(ProtocolError, match="2 filter servers; 1 are allowed"):
        claim_of(body, settings=settings)
