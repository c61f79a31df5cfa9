"""Frames of every kind, whole, bent and broken, give a reply or an end: never an exception, a hang or growth.

The bytes go through the decoder, the broker and the name server exactly as a connection's do, without sockets. They
start from captured frames of stock clients and from the table of requests. SHMQ_TEST_SEED repeats a run,
SHMQ_FUZZ_ROUNDS says how long it is: 200000 are about a minute, SHMQ_CRASH_LONG=1 means 10000000.
"""

from __future__ import annotations

import json
import os
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmq.addresses import Address
from shmq.daemon.bridge.store.log import StoreLog
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Close, Effect, Notify, Reply
from shmq.daemon.nameserver.nameserver import NameServer
from shmq.errors import ProtocolError, ShmqError
from shmq.protocol.codes import Codec, Request
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.frame import FrameDecoder, encode_frame
from shmq.protocol.header import decode_header, encode_command
from shmq.protocol.request_table import REQUESTS, FieldKind
from shmq.shm.access import access_rights
from shmq.shm.core import KeeperStore
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
from tests.golden.frames import read_all
from tests.seed import SEED

ROUNDS = int(os.environ.get("SHMQ_FUZZ_ROUNDS", 10_000_000 if os.environ.get("SHMQ_CRASH_LONG") else 20_000))
LIVES = 40  # rounds a logic lives
WORLD_LIVES = 50  # logics that share one store
SIZES = SegmentSizes(
    file_bytes=64 << 20, topic_max=512, queue_max=8192, frame_max=4096, client_max=16, group_max=256, offset_max=8192
)
GROWTH_BYTES_MAX = 32 << 20
HOUR_MS = 3_600_000

GOLDEN = [frame for frame in read_all() if not frame.is_reply]
TEXTS = [
    "", "x", "0", "-1", "4", "TBW102", "t", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "true",
    "../../etc/passwd", "a" * 128, "ä", "\x00", "\x01\x02", "null", "{}", "9" * 19, "-9223372036854775808",
    "2147483647", "2147483648", "1e3", "NaN", "DefaultCluster", "127.0.0.1:10911", "SQL92", "TagA || TagB", "a > 1",
]  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "32", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808", "1700000000000",
]  # fmt: skip
BODIES = [
    b"", b"{}", b"[]", b"null", b"{", b"\xff", b"1", b'""', b'{"clientID":"c"}', b"[" * 2000, b"{1:" * 500, bytes(300),
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}]}',
    b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"default","queueId":0,"topic":"t"}]}',
    b'{"groupName":"g","retryMaxTimes":-1}', b"a=b\nc", struct.pack(">iiiii", 28, 0, 0, 0, 6) + b"hello!" + bytes(2),
    struct.pack(">iiiii", -30, 0, 0, 0, -6), struct.pack(">i", 2**31 - 1) * 8,
]  # fmt: skip

REVEALING = ("Traceback", ".py", "/dev/shm", "/tmp/", "/run/", "/proc/", "commitlog/")  # no business of a peer

Logic = Broker | NameServer


class World:
    """Real segments and a real log file behind one logic after another."""

    def __init__(self, directory: Path) -> None:
        (directory / "commitlog").mkdir(parents=True)
        (directory / "config").mkdir()
        with open(directory / "commitlog" / f"{0:020d}", "wb") as file:
            file.truncate(SIZES.file_bytes)
        self._instance, self._store = create_segments("test", store_path=directory, sizes=SIZES)
        KeeperStore(self._store).set_allocated_end(SIZES.file_bytes)

    def broker(self) -> Broker:
        broker_settings = BrokerSettings(
            broker_name="test",
            version="0",
            abi=self._instance.abi,
            generation=self._instance.generation,
            pid_namespace=self._instance.pid_namespace,
            serves_tcp=True,
        )
        tables = StoreTables(self._store, self._instance, access_rights())
        log = StoreLog(self._store, report=lambda text: None)
        return Broker(tables, broker_settings, now_ms=0, log=log)

    def nameserver(self) -> NameServer:
        return NameServer()

    def close(self) -> None:
        self._store.close()
        unlink_segments(self._instance)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


class Line:
    """One connection to a logic; what a real one does with bytes, and the rules of answering."""

    def __init__(self, logic: Logic, connection_id: int) -> None:
        self.logic = logic
        self.connection_id = connection_id
        self.decoder = FrameDecoder()
        self.is_open = True
        self.served = 0
        self.owed: set[int] = set()
        logic.connected(connection_id, None, 0, remote=Address("10.0.0.1", 4000), local=Address("10.0.0.2", 10911))

    def feed(self, data: bytes, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        try:
            self.decoder.feed(data)
            while self.is_open and (frame := self.decoder.take()) is not None:
                command = decode_header(frame)
                found = list(self.logic.handle(self.connection_id, command, now_ms))
                self.served += 1
                self.check(command, found)
                effects += found
        except ProtocolError:
            self.end(now_ms)
        return effects

    def check(self, command: Command, effects: list[Effect]) -> None:
        """Not more than one reply, to the request; none where none is wanted."""
        replies = [
            each.command for each in effects if isinstance(each, Reply) and each.connection_id == self.connection_id
        ]
        own = [reply for reply in replies if reply.opaque == command.opaque]
        if command.is_oneway or command.is_reply:
            assert not own or command.opaque in self.owed, f"an answer without a request: {own}"
        elif not own:
            self.owed.add(command.opaque)  # held: a pull, a flush, or a question to a client
        assert all(reply.is_reply for reply in replies)
        for effect in effects:
            if isinstance(effect, Reply):
                says = f"{effect.command.remark} {effect.command.ext}"
                assert not any(mark in says for mark in REVEALING), says
            if isinstance(effect, Reply | Notify):
                written(effect.command)
            if isinstance(effect, Close) and effect.connection_id == self.connection_id:
                self.is_open = False

    def end(self, now_ms: int) -> None:
        self.is_open = False
        list(self.logic.disconnected(self.connection_id, now_ms))


def written(command: Command) -> None:
    """What a connection writes: the frame, or the error instead of it."""
    try:
        assert encode_command(command)
    except ShmqError as error:
        assert str(error)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- what is sent


def bent(chance: random.Random) -> bytes:
    """A captured request with some of its fields or its body changed."""
    (frame,) = chance.choices(GOLDEN)
    decoder = FrameDecoder()
    decoder.feed(frame.data)
    taken = decoder.take()
    assert taken is not None
    command = decode_header(taken)
    for _ in range(chance.randrange(4)):
        if command.ext and chance.random() < 0.7:
            name = chance.choice(sorted(command.ext))
            if chance.random() < 0.3:
                del command.ext[name]
            else:
                command.ext[name] = chance.choice(TEXTS + NUMBERS)
        else:
            command.body = chance.choice([chance.choice(BODIES), mutated(command.body, chance)])
    command.opaque = chance.randrange(1 << 31)
    command.version = chance.choice([0, 317, 401, 409, 479, 32767])
    return encode_command(command)


def composed(chance: random.Random) -> bytes:
    """A request by its row of the table, with values that fit more or less."""
    code = chance.choice(list(REQUESTS))
    ext: dict[str, str] = {}
    for field in REQUESTS[code].fields:
        if chance.random() < 0.93:
            fits = chance.random() < 0.85
            is_number = field.kind in (FieldKind.INT, FieldKind.LONG)
            ext[field.name] = chance.choice(NUMBERS if is_number == fits else TEXTS)
    flag = FLAG_ONEWAY if chance.random() < 0.1 else 1 if chance.random() < 0.05 else 0
    codec = Codec.BINARY if code < 1 << 15 and chance.random() < 0.3 else Codec.JSON
    body = chance.choice(BODIES) if chance.random() < 0.6 else b""
    return encode_command(Command(code, chance.randrange(1 << 31), flag, ext, body, codec=codec))


def odd(chance: random.Random) -> bytes:
    """A JSON header that is no client's."""
    header = {
        "code": chance.choice([*REQUESTS, -1, 2**31 - 1, "10", None, 1.5]),
        "opaque": chance.choice([0, -1, 2**31, "x"]),
        "flag": chance.choice([0, 1, 2, 3, -1]),
        "extFields": chance.choice([None, {}, [], {"topic": chance.choice([1, True, None, "t", [], 1.5])}]),
        "language": chance.choice(["JAVA", 5, "", None, "?"]),
        "version": chance.choice([0, -1, 409, 2**40]),
        "remark": chance.choice([None, "", "x", 1]),
    }
    chosen = {name: value for name, value in header.items() if chance.random() < 0.8}
    return encode_frame(Codec.JSON, json.dumps(chosen).encode() + chance.choice([b"", b"\n", b" ", b"x"]), b"")


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut out or doubled."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        if changed:
            at = chance.randrange(len(changed))
            way = chance.randrange(4)
            if way == 0:
                changed[at] = chance.randrange(256)
            elif way == 1:
                del changed[at : at + chance.randrange(1, 9)]
            elif way == 2:
                changed[at:at] = changed[at : at + chance.randrange(1, 9)]
            else:
                changed[at : at + 4] = struct.pack(">i", chance.choice([-1, 0, 2**31 - 1, -(2**31), 65536]))
    return bytes(changed)


def stream(chance: random.Random) -> bytes:
    """What one connection sends at a time."""
    data = b"".join(chance.choice([bent, bent, composed, composed, composed, odd])(chance) for _ in range(3))
    return mutated(data, chance) if chance.random() < 0.25 else data


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# -- the tests


@pytest.mark.parametrize("kind", [World.broker, World.nameserver], ids=["broker", "nameserver"])
def test_any_stream_gives_replies_or_an_end(kind: Callable[[World], Logic], tmp_path: Path) -> None:
    chance = random.Random(SEED)
    grown_from = served = 0
    world = World(tmp_path / "0")
    for life in range(ROUNDS // LIVES):
        if life % WORLD_LIVES == WORLD_LIVES - 1:
            world.close()
            world = World(tmp_path / str(life))
        logic = kind(world)
        lines: list[Line] = []
        now_ms = 0
        for number in range(LIVES):
            lines = [line for line in lines if line.is_open]
            if len(lines) < 3:
                lines.append(Line(logic, life * LIVES + number + 1))
            line = chance.choice(lines)
            served -= line.served
            for piece in pieces(stream(chance), chance):
                line.feed(piece, now_ms)
            served += line.served
            now_ms += chance.choice([0, 1, 900, 30_000])
            list(logic.tick(now_ms))
        for line in lines:
            line.end(now_ms)
        # Nothing is left to say to connections that are gone.
        for effect in (*logic.tick(now_ms + HOUR_MS), *logic.tick(now_ms + 2 * HOUR_MS)):
            assert not isinstance(effect, Reply | Notify), effect
        if life == ROUNDS // LIVES // 3:
            grown_from = resident_bytes()
    world.close()
    assert served > ROUNDS, "the streams hardly ever reached the logic"
    assert resident_bytes() - grown_from < GROWTH_BYTES_MAX


@pytest.mark.parametrize("kind", [World.broker, World.nameserver], ids=["broker", "nameserver"])
def test_a_captured_request_cut_anywhere_is_executed_when_it_is_whole_and_not_before(
    kind: Callable[[World], Logic], world: World
) -> None:
    for number, frame in enumerate(GOLDEN):
        logic = kind(world)
        line = Line(logic, number + 1)
        for position in range(len(frame.data) - 1):
            assert line.feed(frame.data[position : position + 1], 0) == [] and line.served == 0
        line.feed(frame.data[-1:], 0)
        assert line.served == 1 and line.is_open
        line.end(0)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    code=st.sampled_from(list(Request)) | st.integers(-(1 << 31), (1 << 31) - 1),
    ext=st.dictionaries(
        st.sampled_from(sorted({field.name for spec in REQUESTS.values() for field in spec.fields})),
        st.sampled_from(TEXTS + NUMBERS) | st.text(st.characters(codec="utf-8"), max_size=20),
        max_size=16,
    ),
    body=st.sampled_from(BODIES) | st.binary(max_size=64),
    flag=st.sampled_from([0, 0, 0, 1, 2, 3]),
)
def test_any_single_command_gives_one_reply_or_none(
    world: World, code: int, ext: dict[str, str], body: bytes, flag: int
) -> None:
    for logic in (world.broker(), world.nameserver()):
        line = Line(logic, 1)
        command = Command(code, 77, flag, ext, body)
        effects = list(logic.handle(1, command, 0))
        line.check(command, effects)
        line.end(0)
