"""The short way of a send and the broker's own give the same answers and store the same records."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shmq.addresses import Address
from shmq.daemon.bridge.send_path import SendPath, answer_pieces
from shmq.daemon.bridge.store.log import StoreLog
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Close, Reply
from shmq.errors import ProtocolError
from shmq.protocol.codes import Codec
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.access import Access
from shmq.shm.core import BrokerLog, KeeperStore, record_decode, record_verify
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
from tests.tables.rows import every_row

SIZES = SegmentSizes(
    file_bytes=64 << 20, topic_max=256, queue_max=4096, frame_max=2048, client_max=8, group_max=256, offset_max=64
)
REMOTE, LOCAL = Address("10.1.2.3", 40_000), Address("127.0.0.1", 10_911)
FRAME_BYTES_MAX = 5 << 20

LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip
PLAIN = {
    "a": "group", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "KEYS\1k\2UNIQ_KEY\1AB\2WAIT\1true\2TAGS\1fruit", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


class Raw(str):
    """A value that stands in JSON without quotes."""


def quoted(text: str) -> str:
    """A JSON string as Java's and Go's writers make it: control characters escaped, letters not."""
    return text if isinstance(text, Raw) else json.dumps(text, ensure_ascii=False)


@dataclass
class Request:
    """A send as some client might write it."""

    ext: dict[str, str] = field(default_factory=lambda: dict(PLAIN))
    code: int = 310
    flag: int = 0
    opaque: int = 7
    body: bytes = b"body"
    codec: Codec = Codec.JSON
    language: str = "JAVA"
    end: str = ""
    repeated: str = ""

    def frame(self) -> bytes:
        header = self._json() if self.codec == Codec.JSON else self._binary()
        size = 4 + len(header) + len(self.body)
        return struct.pack(">iI", size, self.codec << 24 | len(header)) + header + self.body

    def _named(self) -> list[tuple[str, str]]:
        names = LONG if self.code == 10 else {}
        pairs = [(names.get(name, name), value) for name, value in self.ext.items()]
        return pairs + [pair for pair in pairs if pair[0] == names.get(self.repeated, self.repeated)]

    def _json(self) -> bytes:
        fields = ",".join(f"{quoted(name)}:{quoted(value)}" for name, value in self._named())
        return (
            f'{{"code":{self.code},"extFields":{{{fields}}},"flag":{self.flag},"language":{quoted(self.language)},'
            f'"opaque":{self.opaque},"serializeTypeCurrentRPC":"JSON","version":409}}{self.end}'
        ).encode()

    def _binary(self) -> bytes:
        pairs = [(name.encode(), value.encode()) for name, value in self._named()]
        ext = b"".join(struct.pack(f">h{len(name)}si", len(name), name, len(value)) + value for name, value in pairs)
        return struct.pack(">hbhiiii", self.code, 0, 409, self.opaque, self.flag, 0, len(ext)) + ext


class Side:
    """One broker of its own, with a connection."""

    def __init__(self, folder: Path) -> None:
        (folder / "commitlog").mkdir(parents=True)
        (folder / "config").mkdir()
        with (folder / "commitlog" / f"{0:020d}").open("wb") as file:
            file.truncate(SIZES.file_bytes)
        self.instance, self.store = create_segments("test", store_path=folder, sizes=SIZES)
        KeeperStore(self.store).set_allocated_end(SIZES.file_bytes)
        self.tables = StoreTables(self.store, self.instance, Access(-1))
        self.settings = settings = BrokerSettings("test", "0", 1, 1, 1, serves_tcp=True, message_bytes_max=1 << 20)
        self.log = StoreLog(self.store, report=lambda _: None)
        self.broker = Broker(self.tables, settings, now_ms=0, log=self.log)
        self.path = SendPath(self.log, settings)
        self.origin = self.path.origin(REMOTE, LOCAL)
        self.broker.connected(1, None, 0, remote=REMOTE, local=LOCAL)
        for name, queues in (("orders", 4), ("%RETRY%group", 1), ("SCHEDULE_TOPIC_XXXX", 18)):
            self.tables.topic_put(name, read_queues=queues, write_queues=queues, perm=6, flags=0, kind=0)

    def slow(self, frame: bytes) -> bytes:
        """What the broker's own way answers; b"!" when it ends the connection."""
        decoder = CommandDecoder(frame_bytes_max=FRAME_BYTES_MAX)
        decoder.feed(frame)
        try:
            command = decoder.take()
        except ProtocolError:
            return b"!"
        assert command is not None
        effects = self.broker.handle(1, command, 0)
        assert not any(isinstance(effect, Close) for effect in effects)
        return b"".join(encode_command(effect.command) for effect in effects if isinstance(effect, Reply))

    def fast(self, frame: bytes) -> bytes | None:
        """What the short way answers; None when it does not take the frame."""
        served = self.path.serve(frame, self.origin, frame_bytes_max=FRAME_BYTES_MAX)
        if served.frame_count == 0:
            assert (served.end, served.answers, served.queues) == (0, b"", ())
            return None
        assert (served.end, served.frame_count) == (len(frame), 1)
        return served.answers

    def record(self, position: int) -> dict[str, Any]:
        """A stored record, without what the time of storing decides."""
        data = BrokerLog(self.store).record_bytes_at(position)
        assert data is not None and record_verify(data)
        fields = record_decode(data)
        if fields["born_ms"] == fields["store_ms"]:
            del fields["born_ms"]
        del fields["store_ms"]
        fields["properties"] = fields["properties"][:-20]
        return fields

    def units(self) -> list[bytes]:
        return [
            KeeperStore(self.store).units_read(queue, 0, 1 << 16)
            for topic in self.tables.topics()
            for queue in topic.queues[:18]
            if topic.name in ("orders", "%RETRY%group", "fresh")
        ]

    def close(self) -> None:
        self.store.close()
        unlink_segments(self.instance)


class Pair:
    """The same requests to two brokers: one has the short way."""

    def __init__(self, folder: Path) -> None:
        self.one, self.other = Side(folder / "one"), Side(folder / "other")

    def compare(self, frame: bytes) -> bool:
        """Send; True when the short way was taken."""
        before = self.one.store.log_end
        assert self.other.store.log_end == before
        answer = self.one.fast(frame)
        taken = answer is not None
        assert (self.one.slow(frame) if answer is None else answer) == self.other.slow(frame)
        assert self.one.store.log_end == self.other.store.log_end
        while before < self.one.store.log_end:
            record = self.one.record(before)
            assert record == self.other.record(before)
            before += record["record_bytes"]
        return taken

    def close(self) -> None:
        self.one.close()
        self.other.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    assert pair.one.units() == pair.other.units()
    pair.close()


# ---- what is taken, and what is not ------------------------------------------------------------------------------


@every_row("codec", list(Codec))
@every_row("code", [10, 310])
@every_row(
    "change",
    [
        {},
        {"opaque": 0},
        {"opaque": -1},
        {"opaque": -(1 << 31)},
        {"opaque": (1 << 31) - 1},
        {"flag": 2},
        {"body": b""},
        {"body": bytes(15_000)},
        {"ext": {"e": "3"}},
        {"ext": {"f": "1"}},
        {"ext": {"f": "48"}},
        {"ext": {"g": "0"}},
        {"ext": {"h": "-7"}},
        {"ext": {"i": ""}},
        {"ext": {"i": "TAGS\1Zürich 数\2"}},
        {"ext": {"i": "WAIT\1false"}},
        {"ext": {"i": "CLUSTER\1mine\2a\1b\1c\2"}},
        {"ext": {"i": "XDELAY\1b\2DELAYED\1c"}},
        {"ext": {"i": "a\1" + "v" * 10_000}},
        {"ext": {"i": 'quote\1"\\/\b\f\n\r\t\x1f'}},
        {"ext": {"j": "3", "l": "16", "n": "broker"}},
        {"ext": {"d": "-1"}},
    ],
)
def test_what_clients_send_all_day_takes_the_short_way(
    pair: Pair, codec: Codec, code: int, change: dict[str, Any]
) -> None:
    options = {**change, "ext": PLAIN | change.get("ext", {})}
    assert pair.compare(Request(codec=codec, code=code, **options).frame())


def batch(*records: tuple[bytes, bytes]) -> bytes:
    """The body of a batch."""
    return b"".join(
        struct.pack(f">iiiii{len(body)}sH", 22 + len(body) + len(text), 0, 0, 3, len(body), body, len(text)) + text
        for body, text in records
    )


@every_row("codec", list(Codec))
@every_row("marked", [{"m": "true"}, {"m": "false"}])
@every_row(
    "records",
    [
        [(b"x", b"")],
        [(b"x", b"KEYS\1k\2WAIT\1true"), (b"", b"TAGS\1a\2"), (b"y" * 9000, b"TAGS\1a\2TAGS\1b\2")],
        [(b"%d" % number, b"UNIQ_KEY\1%032d" % number) for number in range(512)],
        [(b"x", b"__CRC32#\x010123456789\2A\x01b")],
        [(b"x", b"rubbish"), (b"y", b"\2\2")],
        [(b"x", b""), (b"y" * 20_000, b"")],
        [(b"x", bytes(32_000))],
    ],
)
def test_batches_take_the_short_way(
    pair: Pair, codec: Codec, marked: dict[str, str], records: list[tuple[bytes, bytes]]
) -> None:
    assert pair.compare(Request(PLAIN | marked, code=320, codec=codec, body=batch(*records)).frame())
    oneway = Request(PLAIN | marked | {"i": "TAGS\1z"}, code=320, codec=codec, flag=2, body=batch(*records))
    assert pair.compare(oneway.frame())


@every_row(
    ("change", "body"),
    [
        ({}, b""),
        ({}, batch((b"x", b""))[:-1]),
        ({}, batch((b"x", b"")) + b"\0"),
        ({}, batch(*[(b"x", b"")] * 513)),
        ({}, batch(*[(b"x" * 10_000, b"")] * 30)),
        ({"b": "%RETRY%group"}, batch((b"x", b""))),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, batch((b"x", b""))),
        ({"i": "DELAY\x011"}, batch((b"x", b""))),
        ({"i": "TRAN_MSG\1true"}, batch((b"x", b""))),
        ({"f": "4"}, batch((b"x", b""))),
        ({"m": "what"}, batch((b"x", b""))),
        ({"e": "9"}, batch((b"x", b""))),
    ],
)
def test_other_batches_are_left_to_the_broker(pair: Pair, change: dict[str, str], body: bytes) -> None:
    assert not pair.compare(Request(PLAIN | {"m": "true"} | change, code=320, body=body).frame())


def test_what_the_cpp_and_the_node_client_write_takes_it_too(pair: Pair) -> None:
    numbers = {name: Raw(PLAIN[name]) for name in "defghjkm"}
    assert pair.compare(Request(PLAIN | numbers, end="\n", language="CPP").frame())
    assert pair.compare(Request(PLAIN | {"k": "0", "m": "0"}).frame())


@every_row("codec", list(Codec))
@every_row("code", [10, 310])
@every_row(
    "change",
    [
        {"ext": {"b": "%RETRY%group"}},
        {"ext": {"b": "SCHEDULE_TOPIC_XXXX"}},
        {"ext": {"b": "missing", "c": "none"}},
        {"ext": {"b": "missing topic!"}},
        {"ext": {"b": ""}},
        {"ext": {"e": "4"}},
        {"ext": {"e": "x"}},
        {"ext": {"e": "1.5"}},
        {"ext": {"e": "99999999999"}},
        {"ext": {"f": "4"}},
        {"ext": {"f": "8"}},
        {"ext": {"g": "1" * 19}},
        {"ext": {"g": ""}},
        {"ext": {"h": "+1"}},
        {"ext": {"i": "DELAY\x013"}},
        {"ext": {"i": "DELAY\x010"}},
        {"ext": {"i": "TRAN_MSG\1true"}},
        {"ext": {"i": "a\1b\2a\1c"}},
        {"ext": {"i": "a\1\2WAIT\1true"}},
        {"ext": {"i": "a\1b\2\2c\1d\2WAIT\1true"}},
        {"ext": {"i": "rubbish"}},
        {"ext": {"i": "".join(f"k{number}\1v\2" for number in range(40))}},
        {"ext": {"i": "a\1" + "v" * 32_800}},
        {"ext": {"m": "true"}},
        {"ext": {"k": "true"}},
        {"ext": {"AccessKey": "me"}},
        {"ext": {"a": "\x7f"}},
        {"ext": {"a": "Zürich"}},
        {"flag": 1},
        {"flag": 4},
        {"body": bytes(17_000)},
        {"body": bytes((1 << 20) + 1)},
        {"repeated": "b"},
        {"repeated": "i"},
    ],
)
def test_everything_else_is_left_to_the_broker(pair: Pair, codec: Codec, code: int, change: dict[str, Any]) -> None:
    options = {**change, "ext": PLAIN | change.get("ext", {})}
    assert not pair.compare(Request(codec=codec, code=code, **options).frame())


@every_row("name", "abcdefgh")
@every_row("code", [10, 310])
def test_a_missing_field_is_left_to_the_broker(pair: Pair, name: str, code: int) -> None:
    ext = {key: value for key, value in PLAIN.items() if key != name}
    assert not pair.compare(Request(ext, code=code).frame())


@every_row(
    "edit",
    [
        lambda text: text.replace(b'"code":310', b'"code": 310'),
        lambda text: text.replace(b'"code":310', b'"code":"310"'),
        lambda text: text.replace(b'"code":310', b'"code":311'),
        lambda text: text.replace(b'"code":310', b'"code":310.0'),
        lambda text: text.replace(b'"code":310', b'"code":0310'),
        lambda text: text.replace(b'"code":310', b'"code":310,"code":310'),
        lambda text: text.replace(b'"e":"1"', b'"e":null'),
        lambda text: text.replace(b'"e":"1"', b'"e":01'),
        lambda text: text.replace(b'"e":"1"', b'"e":-0'),
        lambda text: text.replace(b'"e":"1"', b'"e":1e0'),
        lambda text: text.replace(b'"e":"1"', b'"e":[1]'),
        lambda text: text.replace(b'"e":"1"', b'"\\u0065":"1"'),
        lambda text: text.replace(b'"e":"1"', b'"e":"\\u0031"'),
        lambda text: text.replace(b'"version":409', b'"version":409,"remark":"x"'),
        lambda text: text.replace(b'"version":409', b'"version":409,"remark":null'),
        lambda text: text.replace(b'"version":409', b'"version":99999999999'),
        lambda text: text.replace(b'"opaque":7', b'"opaque":9999999999'),
        lambda text: text.replace(b"\\u0001", b"\\u00e9"),
        lambda text: text.replace(b"\\u0001", b"\\ud83d\\ude00"),
        lambda text: text.replace(b"\\u0001", b"\\x01"),
        lambda text: text.replace(b"\\u0001", b"\x01"),
        lambda text: text.replace(b"fruit", b"\xff"),
        lambda text: text.replace(b"fruit", b"\xed\xa0\x80"),
        lambda text: text.replace(b"fruit", b"\xc0\x80"),
        lambda text: text.replace(b'fruit"', b"fruit"),
        lambda text: text[:-1],
        lambda text: text + b"}",
        lambda text: b"[" + text + b"]",
        lambda text: b"",
    ],
)
def test_headers_that_need_interpretation_are_left_to_the_broker(pair: Pair, edit: Callable[[bytes], bytes]) -> None:
    frame = Request().frame()
    size = struct.unpack(">I", frame[4:8])[0]
    header = edit(frame[8 : 8 + size])
    changed = struct.pack(">iI", 4 + len(header) + 4, len(header)) + header + b"body"
    assert not pair.compare(changed)


# ---- anything ----------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from(["0", "1", "3", "4", "-1", "007", "-0", " 1", "1 ", "", "+1", "2147483648", "x", "١"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.sampled_from(["TAGS", "KEYS", "WAIT", "CLUSTER", "DELAY", "TRAN_MSG", "__CRC32#", "TIMER_DELAY_MS", "x", ""])
PROPERTIES = st.lists(st.tuples(NAMES, st.sampled_from(["\1", "", "\1\1"]), TEXTS), max_size=5).flatmap(
    lambda pairs: st.sampled_from(["", "\2", "\2\2"]).map(lambda end: "\2".join(map("".join, pairs)) + end)
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "a": TEXTS, "b": st.sampled_from(["orders", "fresh", "%RETRY%group", "OFFSET_MOVED_EVENT", "a b", ""]),
        "c": st.sampled_from(["TBW102", "", "orders"]), "d": NUMBERS, "e": st.sampled_from([*"01345", "x", ""]),
        "f": st.sampled_from(["0", "1", "2", "4", "8", "12", "16", "x"]), "g": NUMBERS, "h": NUMBERS, "i": PROPERTIES,
        "j": NUMBERS, "k": st.sampled_from(["true", "false", "0", "1", ""]), "l": NUMBERS,
        "m": st.sampled_from(["false", "false", "0", "FALSE", ""]), "n": TEXTS, "o": TEXTS,
    },
)  # fmt: skip
REQUESTS = st.builds(
    Request,
    ext=st.builds(lambda changes, dropped: {k: v for k, v in (PLAIN | changes).items() if k not in dropped},
                  CHANGES, st.sets(st.sampled_from("abcdefghijkm"), max_size=1)),
    code=st.sampled_from([10, 310, 320]),
    flag=st.sampled_from([0, 0, 0, 2]),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    body=st.binary(max_size=40) | st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4).map(
        lambda records: batch(*records)
    ),
    codec=st.sampled_from(list(Codec)),
    language=st.sampled_from(["JAVA", "GO", "?", ""]),
    end=st.sampled_from(["", "\n", " "]),
)  # fmt: skip


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS)
@example(Request(PLAIN | {"i": ""}))
def test_any_send_has_one_answer_whichever_way_it_goes(pair: Pair, request: Request) -> None:
    pair.compare(request.frame())


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_has_one_answer_whichever_way_it_goes(pair: Pair, data: st.DataObject) -> None:
    frame = bytearray(Request(codec=data.draw(st.sampled_from(list(Codec)))).frame())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(8, len(frame) - 1))  # the prefix is the frame decoder's
        frame[at] = data.draw(st.sampled_from(b'\0\1 "\\{}:,09azA\x7f\x80\xff'))
    pair.compare(bytes(frame))


# ---- many frames -------------------------------------------------------------------------------------------------


def test_frames_are_served_until_one_is_not_whole_or_not_plain(pair: Pair) -> None:
    plain = [Request(opaque=number).frame() for number in range(5)]
    other = Request(PLAIN | {"i": "DELAY\x011"}).frame()
    side = pair.one

    def serve(data: bytes) -> tuple[int, int, bytes]:
        return side.path.serve(data, side.origin, frame_bytes_max=FRAME_BYTES_MAX)[:3]

    end = side.store.log_end
    length = sum(map(len, plain))
    served, count, answers = serve(b"".join(plain) + other + plain[0])
    assert (served, count) == (length, 5)
    for number in range(5):
        size = 4 + struct.unpack(">i", answers[:4])[0]
        assert b'"opaque":%d,' % number in answers[:size]
        answers = answers[size:]
    assert answers == b""
    for cut in range(1, len(plain[0])):
        assert serve(plain[0] + plain[1][:cut])[:2] == (len(plain[0]), 1)
    for frame in [*plain, *[plain[0]] * (len(plain[0]) - 1)]:  # the other side sees as many
        pair.other.slow(frame)
    assert side.store.log_end == pair.other.store.log_end > end


def test_a_frame_longer_than_allowed_is_not_looked_at(pair: Pair) -> None:
    frame = Request().frame()
    side = pair.one
    assert side.path.serve(frame, side.origin, frame_bytes_max=len(frame) - 5).frame_count == 0
    assert side.path.serve(frame, side.origin, frame_bytes_max=len(frame) - 4).frame_count == 1
    pair.other.slow(frame)


def test_queues_with_new_messages_are_named(pair: Pair) -> None:
    frames = [Request(PLAIN | {"e": str(queue_id)}).frame() for queue_id in (0, 0, 2)]
    topic = pair.one.tables.topic("orders")
    assert topic is not None
    served = pair.one.path.serve(b"".join(frames), pair.one.origin, frame_bytes_max=FRAME_BYTES_MAX)
    assert served.queues == (topic.queues[0], topic.queues[2])
    for frame in frames:
        pair.other.slow(frame)


def test_a_topic_that_goes_or_changes_is_noticed(pair: Pair) -> None:
    frame = Request(PLAIN | {"b": "passing", "c": "none", "e": "2"}).frame()
    for side in (pair.one, pair.other):
        side.tables.topic_put("passing", read_queues=3, write_queues=3, perm=6, flags=0, kind=0)
    assert pair.compare(frame)
    for side in (pair.one, pair.other):
        side.tables.topic_put("passing", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    assert not pair.compare(frame)
    for side in (pair.one, pair.other):
        side.tables.topic_delete("passing")
    assert not pair.compare(frame)
    for side in (pair.one, pair.other):
        side.tables.topic_put("passing", read_queues=4, write_queues=4, perm=6, flags=0, kind=0)
    assert pair.compare(frame)


def test_a_log_that_refuses_is_left_to_the_broker(pair: Pair) -> None:
    frame = Request().frame()
    for side in (pair.one, pair.other):
        KeeperStore(side.store).set_read_only(4)
    assert not pair.compare(frame)
    for side in (pair.one, pair.other):
        KeeperStore(side.store).set_read_only(0)
    assert pair.compare(frame)


@every_row("codec", list(Codec))
def test_an_answer_is_cut_where_the_send_decides(codec: Codec) -> None:
    pieces = answer_pieces(codec)
    assert sum(isinstance(piece, int) for piece in pieces) == (4 if codec == Codec.JSON else 5)
    assert b"MSG_REGION" in b"".join(piece for piece in pieces if isinstance(piece, bytes))


def test_an_ipv6_client_is_stored_and_answered_with_its_addresses(tmp_path: Path) -> None:
    side = Side(tmp_path)
    origin = side.path.origin(Address("fe80::1", 5), Address("::1", 10_911))
    end = side.store.log_end
    served = side.path.serve(Request().frame(), origin, frame_bytes_max=FRAME_BYTES_MAX)
    assert served.frame_count == 1
    assert b'"msgId":"%s00002A9F%016X"' % (b"0" * 31 + b"1", end) in served.answers
    assert len(side.record(end)["born_host"]) == 20
    side.close()


def test_a_length_that_is_changed_holds_for_the_next_message(tmp_path: Path) -> None:
    side = Side(tmp_path)
    short, long = Request(body=bytes(2048)).frame(), Request(body=bytes(2049)).frame()
    assert side.fast(long) is not None
    side.settings.message_bytes_max = 2048
    assert side.fast(long) is None and side.fast(short) is not None
    side.settings.message_bytes_max = 4096
    assert side.fast(long) is not None
    side.close()
