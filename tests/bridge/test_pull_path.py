"""The short way of a pull that repeats and the broker's own give the same answers and leave the same behind."""

import contextlib
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.addresses import Address
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.pull_path import PullPath
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.effects import Reply
from shmq.errors import ShmqError
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.frame import Frame
from shmq.protocol.header import CommandDecoder, decode_header, encode_command
from shmq.shm.core import KeeperStore, StoreFigures
from tests.bridge.live_bridge import is_served, raw_peer
from tests.bridge.test_send_path import Side
from tests.bridge.test_sends_over_tcp import broker, send

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
COUNT = 40


def header(
    offset: object = 0,
    commit: object = 0,
    opaque: object = 7,
    *,
    flags: int = COMMIT,
    declined: bool = False,
    **more: str,
) -> bytes:
    """A pull as Java's client writes it; a space after a colon declines the short way."""
    ext = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "4",
        "sysFlag": str(flags), "commitOffset": str(commit), "suspendTimeoutMillis": "15000", "subscription": "*",
        "subVersion": "5", **more,
    }  # fmt: skip
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in ext.items())
    text = f'{{"code":11,"extFields":{{{fields}}},"flag":0,"language":"JAVA","opaque":{opaque},"version":409}}'
    return (text.replace('"queueOffset":', '"queueOffset": ') if declined else text).encode()


def framed(text: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(text), len(text)) + text


class Pulls(Side):
    """A broker with messages, and the short way to them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pulls = PullPath(self.store, self.broker.plans, Admission())
        self.taken = 0
        self.damage: list[str] = []
        self.log._report = self.damage.append
        self.broker.connected(2, None, 0, remote=Address("10.0.0.9", 5), local=Address("127.0.0.1", 10911))
        self.put(*(b"body %d" % number for number in range(COUNT)))
        self.beat()

    def put(self, *bodies: bytes, tag: str = "fruit") -> None:
        orders = self.tables.topic("orders")
        assert orders is not None
        for body in bodies:
            self.log.append(orders, 0, NewRecord(body, f"TAGS\x01{tag}\x02".encode()))

    def beat(self, tags: str = "*", *, version: int = 5, topic: str = "orders") -> None:
        data = ConsumerData("g", [SubscriptionData(topic, tags, version)])
        self.ask(Request.HEART_BEAT, encode_body(HeartbeatData("c", [data])))

    def ask(self, code: int, body: bytes = b"", **ext: str) -> None:
        (reply, *_) = self.broker.handle(1, Command(code=code, body=body, ext=ext), 0)
        assert isinstance(reply, Reply) and reply.command.code == 0, reply

    def old(self, text: bytes, *, learns: bool = False, connection: int = 1) -> bytes | None:
        """What the broker's own way answers; None when nothing yet."""
        decoder = CommandDecoder()
        decoder.feed(framed(text))
        command = decoder.take()
        assert command is not None
        effects = self.broker.handle(connection, command, 0)
        if learns:
            self.pulls.see(Frame(command.codec, text, b""), command, effects)
        return next((encode_command(effect.command) for effect in effects if isinstance(effect, Reply)), None)

    def short(self, text: bytes, *, connection: int = 1) -> bytes | None:
        """What the short way answers; None when it leaves the pull to the broker."""
        data = framed(text)
        pulled = self.pulls.serve(connection, data, BridgeLimits())
        assert pulled.end == (len(data) if pulled.answers else 0)
        self.taken += bool(pulled.answers)
        return b"".join(pulled.answers) or None

    def learn(self, **changes: object) -> None:
        """Let it see one pull, and prove that its like go the short way."""
        self.old(header(**changes | {"flags": COMMIT}))  # type: ignore[arg-type]
        self.old(header(**changes), learns=True)  # type: ignore[arg-type]
        assert self.short(header(**changes)) is not None  # type: ignore[arg-type]

    def progress(self) -> tuple[int, bytes]:
        group, orders = self.tables.group("g"), self.tables.topic("orders")
        assert group is not None and orders is not None
        slot = self.tables.offset_slot(group, orders.queues[0])
        assert slot is not None
        return self.tables.committed(slot), StoreFigures(self.store).offsets_taken()


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Pulls]:
    side = Pulls(tmp_path)
    yield side
    side.close()


@pytest.mark.parametrize("flags", [0, COMMIT, SUBSCRIPTION, COMMIT | SUSPEND | SUBSCRIPTION])
def test_answers_and_progress_are_those_of_the_old_way(side: Pulls, flags: int) -> None:
    side.learn(flags=flags)
    side.taken = 0
    for offset in range(COUNT):
        for commit, opaque in ((0, 0), (offset, 2**31 - 1), (COUNT, offset), (COUNT + 1, 10)):
            side.old(header(0, 3, flags=COMMIT, declined=True))
            short, left = side.short(header(offset, commit, opaque, flags=flags)), side.progress()
            side.old(header(0, 3, flags=COMMIT, declined=True))
            assert short == side.old(header(offset, commit, opaque, flags=flags, declined=True))
            assert left == side.progress()
    assert side.taken == 4 * COUNT


def test_a_header_that_declines_is_never_taken(side: Pulls) -> None:
    for _ in range(3):
        side.old(header(declined=True), learns=True)
        assert side.short(header(declined=True)) is None


def topic(**changes: str) -> Callable[[Pulls], None]:
    fields = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
        "perm": "6",
        "order": "false",
    }
    fields |= {"readQueueNums": "4", "writeQueueNums": "4", **changes}
    return lambda side: side.ask(Request.UPDATE_AND_CREATE_TOPIC, b"", **fields)


def remade(side: Pulls) -> None:
    side.ask(Request.DELETE_TOPIC_IN_BROKER, topic="orders")
    topic()(side)
    side.put(b"new")


def group_gone(side: Pulls) -> None:
    side.ask(Request.UNREGISTER_CLIENT, clientID="c", consumerGroup="g")
    side.ask(Request.DELETE_SUBSCRIPTIONGROUP, groupName="g")


def group_off(side: Pulls) -> None:
    config = {"groupName": "g", "consumeEnable": False}
    side.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(config).encode())


CHANGES: dict[str, Callable[[Pulls], None]] = {
    "another subscription": lambda side: side.beat("vegetable", version=6),
    "unsubscribed": lambda side: side.beat(topic="others", version=6),
    "group off": group_off,
    "group deleted": group_gone,
    "no permission": topic(perm="2"),
    "topic deleted": lambda side: side.ask(Request.DELETE_TOPIC_IN_BROKER, topic="orders"),
    "topic made again": remade,
    "client away": lambda side: side.ask(Request.UNREGISTER_CLIENT, clientID="c", consumerGroup="g"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_plan_rests_upon_ends_it(side: Pulls, name: str) -> None:
    side.learn()
    CHANGES[name](side)
    assert side.short(header()) is None
    first = side.old(header(), learns=True)
    second = side.short(header())
    assert second is None or second == first


def test_a_connection_goes_the_short_way_when_its_own_offsets_are_of_this_life(side: Pulls) -> None:
    for connection in (1, 2):
        side.old(header(0), connection=connection)
        side.old(header(0), learns=True, connection=connection)
    assert side.short(header(8)) and side.short(header(8), connection=2)
    remade(side)
    side.put(*[b"new"] * COUNT)
    side.old(header(0), learns=True, connection=2)
    assert side.short(header(8), connection=2)
    assert side.short(header(8)) is None, "the other one has an offset of the former life"
    moved = side.old(header(8), learns=True)
    assert moved is not None and b"OFFSET_OVERFLOW_BADLY" in moved
    assert side.short(header(0)) is None, "its commits may still be of the former life"
    side.old(header(0), learns=True)
    side.old(header(4), learns=True)
    side.old(header(8), learns=True)
    assert side.short(header(12)) is not None


def test_fewer_queues_end_the_plan_of_a_queue_that_is_not_there(side: Pulls) -> None:
    orders = side.tables.topic("orders")
    assert orders is not None
    side.log.append(orders, 3, NewRecord(b"last", b""))
    side.learn(queueId="3")
    topic(readQueueNums="2", writeQueueNums="2")(side)
    assert side.short(header(queueId="3")) is None


def test_other_messages_are_chosen_after_another_subscription(side: Pulls) -> None:
    side.learn()
    side.put(b"carrot", tag="vegetable")
    side.beat("vegetable", version=6)
    side.old(header(COUNT), learns=True)
    answer = side.short(header(COUNT))
    assert answer is not None and b"carrot" in answer
    assert side.short(header(0)) == side.old(header(0, declined=True))
    assert answer == side.old(header(COUNT, declined=True))


def test_a_pull_far_behind_is_left_to_the_broker_which_sends_it_to_a_slave(side: Pulls) -> None:
    side.settings.slave_reads_bytes = side.store.log_end // 2
    side.old(header(COUNT - 8))
    side.old(header(COUNT - 8), learns=True)
    served = 0
    for offset in range(COUNT):
        answer, short = side.old(header(offset, declined=True)), side.short(header(offset))
        assert answer is not None and short in (None, answer), offset
        assert (short is None) == (b'"suggestWhichBrokerId":"1"' in answer), offset
        served += short is not None
    assert 0 < served < COUNT


def test_a_group_that_always_reads_a_slave_is_left_to_the_broker(side: Pulls) -> None:
    side.settings.slave_reads_bytes = 1 << 30
    config = {"groupName": "g", "brokerId": 1}
    side.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(config).encode())
    for _ in range(2):
        answer = side.old(header(), learns=True)
        assert answer is not None and b'"suggestWhichBrokerId":"1"' in answer
    assert side.short(header()) is None


@pytest.mark.parametrize("offset", [COUNT, COUNT + 1, 2**62, 10**18, 2**63, 10**30, -1])
def test_what_is_not_there_is_left_to_the_broker(side: Pulls, offset: int) -> None:
    side.learn(flags=COMMIT | SUSPEND)
    before = side.progress()
    assert side.short(header(offset, 9, flags=COMMIT | SUSPEND)) is None
    assert side.progress() == before


def test_a_pull_at_the_end_is_held(side: Pulls) -> None:
    side.learn(flags=SUSPEND)
    assert side.short(header(COUNT, flags=SUSPEND)) is None
    assert side.old(header(COUNT, flags=SUSPEND), learns=True) is None
    assert side.short(header(COUNT, flags=SUSPEND)) is None


def test_a_damaged_record_is_for_the_broker_to_report(side: Pulls, tmp_path: Path) -> None:
    side.learn()
    KeeperStore(side.store).flush()  # above the durable end nothing is damage yet
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(file.read(1 << 20).index(b"body 6"))
        file.write(b"BODY")
    for offset in range(12):
        short, left = side.short(header(offset, offset)), side.progress()
        assert (short is None) == (offset == 6)  # others end in front of it, or begin behind
        assert b"BODY" not in (short or b"")
        assert short in (None, side.old(header(offset, offset, declined=True)))
        assert short is None or left == side.progress()
    assert len(side.damage) == 1


TEXT = header(5, 3)
HOSTILE = {
    "zeros": header("005"), "plus": header("+5"), "letters": header("5x"), "empty": header(""), "space": header(" 5"),
    "negative": header(-5), "twice": TEXT.replace(b'"topic":', b'"queueOffset":"9","topic":'),
    "twice, behind": TEXT.replace(b'"subVersion":', b'"queueOffset":"9","subVersion":'),
    "outside": TEXT.replace(b'{"code"', b'{"queueOffset":"9","code"'),
    "nested": TEXT.replace(b'{"code"', b'{"x":{"queueOffset":"9","commitOffset":"9","opaque":9},"code"'),
    "in a text": TEXT.replace(b'"JAVA"', b'"\\"queueOffset\\":\\"9\\""'),
    "escaped name": TEXT.replace(b'"topic":', b'"queue\\u004fffset":"9","topic":'),
    "fraction": header(5, opaque="7.0"), "exponent": header(5, opaque="7e0"), "opaque zeros": header(5, opaque="07"),
    "mark": TEXT.replace(b'"queueOffset":"5"', b'"queueOffset":"\2"'),
    "oneway": TEXT.replace(b'"flag":0', b'"flag":2'), "answer": TEXT.replace(b'"flag":0', b'"flag":1'),
}  # fmt: skip


def same_both_ways(side: Pulls, text: bytes) -> None:
    """The short way may decline; what it answers is the old way's, and it takes nothing that the old one refuses."""
    short = side.short(text)
    if short is None:
        return
    assert short == side.old(text), text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_answered_as_by_the_broker(side: Pulls, name: str) -> None:
    side.learn()
    text = HOSTILE[name]
    for _ in range(2):
        same_both_ways(side, text)
        try:
            side.old(text, learns=True)
        except ShmqError:
            assert side.short(text) is None


def test_a_header_cut_anywhere_is_not_taken(side: Pulls) -> None:
    side.learn()
    data = framed(TEXT)
    for end in range(len(data)):
        assert side.pulls.serve(1, data[:end], BridgeLimits()).answers == ()
        assert side.short(TEXT[:end]) is None or end >= len(TEXT)


def mutated(noise: random.Random) -> bytes:
    text = bytearray(header(noise.randrange(COUNT + 3), noise.randrange(COUNT + 3), noise.randrange(1000)))
    marks = [text.index(name) + 8 for name in (b"queueOffset", b"commitOffset", b"opaque")]
    for _ in range(noise.randint(0, 2)):
        near = noise.choice(marks) + noise.randint(-10, 12) if noise.random() < 0.7 else noise.randrange(len(text))
        place = min(near, len(text) - 1)
        kind = noise.randrange(3)
        if kind == 0:
            text[place] = noise.choice(b'0123456789"\\{}:,-\1\2\3 x')
        elif kind == 1:
            del text[place]
        else:
            text[place:place] = noise.choice([b"0", b"9", b'"', b'"queueOffset":"3",', b"-", b"\2"])
    return bytes(text)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_headers_are_answered_as_by_the_broker(side: Pulls, seed: int) -> None:
    noise = random.Random(seed)
    side.learn()
    for _ in range(1000):
        text = mutated(noise)
        same_both_ways(side, text)
        try:
            decode_header(Frame(0, text, b""))  # type: ignore[arg-type]
            side.old(text, learns=True)
        except ShmqError:
            assert side.short(text) is None, text
            continue
        same_both_ways(side, text)
    assert side.taken > 300


def test_over_tcp_whatever_the_bytes_are_cut_into_both_ways_answer_the_same() -> None:
    noise = random.Random(1)
    with broker() as (bridge, peer), raw_peer(bridge, tcp=True) as other:
        for number in range(COUNT):
            peer.send(send(number, body=b"%d" % number))
            assert peer.take() is not None
        data = b"".join(framed(header(number, number, number, flags=COMMIT | SUBSCRIPTION)) for number in range(COUNT))
        while data:
            cut = noise.randint(1, 700)
            peer.send(data[:cut])
            data = data[cut:]
        for number in range(COUNT):
            other.send(framed(header(number, number, number, flags=COMMIT | SUBSCRIPTION, declined=True)))
            assert peer.take() == other.take()


def test_a_bridge_outlives_mutated_headers() -> None:
    noise = random.Random(7)
    with broker() as (bridge, peer):
        peer.send(send(1))
        assert peer.take() is not None
        for _ in range(20):
            with raw_peer(bridge, tcp=True) as hostile, contextlib.suppress(OSError):
                hostile.send(b"".join(framed(mutated(noise)) for _ in range(20)))
                hostile.socket.shutdown(socket.SHUT_WR)
                while hostile.socket.recv(1 << 16):
                    pass
        assert is_served(bridge)
