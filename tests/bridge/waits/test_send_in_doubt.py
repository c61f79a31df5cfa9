"""A send that is stored while the log is fenced is stored once, and its sender hears that its future is in doubt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from shmq.daemon.bridge.send_path import Served
from shmq.daemon.broker.log import NewRecord
from shmq.errors import NotMaster
from shmq.protocol.codes import Codec, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.header import CommandDecoder
from shmq.shm.core import READ_ONLY_FENCED, ReplicaStore
from tests.bridge.test_send_path import FRAME_BYTES_MAX, PLAIN, Request, Side, batch
from tests.tables.rows import every_row

HOUR_NS = 3_600_000_000_000
Result = TypeVar("Result")
BATCH = batch((b"x", b"KEYS\1k"), (b"y", b""))
ONE, MANY = Request(), Request(PLAIN | {"m": "true"}, code=320, body=BATCH)


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    one, other = Side(tmp_path / "one"), Side(tmp_path / "other")
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def side(sides: tuple[Side, Side]) -> Side:
    return sides[0]


def in_doubt(side: Side, send: Callable[[], Result], *, lasts_ns: int | None = None) -> tuple[Result, int]:
    """Send when the lease is over, or is for so long only, and the append does not know it; what came of it, and where
    it began.

    An append believes for a quarter of a millisecond what it saw last, so a send that came too late is sent again.
    """
    replica, topic = ReplicaStore(side.store), side.tables.topic("orders")
    assert topic is not None
    for _ in range(10_000):
        replica.lead(0)
        replica.lease(boottime_ns() + HOUR_NS)
        side.log.append(topic, 0, NewRecord(b"looks at the lease"))
        end = side.store.log_end
        replica.lease(1 if lasts_ns is None else boottime_ns() + lasts_ns)
        result = send()
        if side.store.log_end > end and side.store.standing == READ_ONLY_FENCED:
            return result, end
    raise AssertionError("no append came in time")


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def served(side: Side, frames: bytes) -> Served:
    return side.path.serve(frames, side.origin, frame_bytes_max=FRAME_BYTES_MAX)


def commands(data: bytes) -> list[Command]:
    decoder = CommandDecoder(frame_bytes_max=FRAME_BYTES_MAX)
    decoder.feed(data)
    return list(iter(decoder.take, None))


def bodies_from(side: Side, position: int) -> list[bytes]:
    bodies = []
    while position < side.store.log_end:
        record = side.record(position)
        bodies.append(record["body"])
        position += record["record_bytes"]
    return bodies


@every_row("codec", list(Codec))
@every_row(("request", "bodies"), [(ONE, [b"body"]), (MANY, [b"x", b"y"])])
def test_a_send_that_is_stored_while_the_log_is_fenced_is_answered_as_by_the_broker(
    sides: tuple[Side, Side], codec: Codec, request: Request, bodies: list[bytes]
) -> None:
    one, other = sides
    request = Request(request.ext, request.code, body=request.body, codec=codec)
    answer, end = in_doubt(one, lambda: one.fast(request.frame()))
    assert answer is not None, "it is stored, and left to the broker, which would store it again"
    assert bodies_from(one, end) == bodies
    (reply,) = commands(answer)
    error = error_of(reply)
    assert (reply.opaque, reply.code) == (7, Response.SERVICE_NOT_AVAILABLE)
    assert isinstance(error, NotMaster) and error.maybe_stored
    expected, end = in_doubt(other, lambda: other.slow(request.frame()))
    assert answer == expected and bodies_from(other, end) == bodies


def test_sends_in_front_of_one_in_doubt_are_acknowledged_and_none_behind_it_is_stored(side: Side) -> None:
    frames = b"".join(Request(opaque=number).frame() for number in range(1000))
    found, _ = in_doubt(side, lambda: served(side, frames), lasts_ns=500_000)
    while not (found.doubted_count and found.frame_count > 1):
        found, _ = in_doubt(side, lambda: served(side, frames), lasts_ns=500_000)
    replies = commands(found.answers)
    assert [reply.opaque for reply in replies] == list(range(found.frame_count))
    assert {reply.code for reply in replies[:-1]} == {Response.SUCCESS}
    assert (replies[-1].code, replies[-1].ext["shmqMaybeStored"]) == (Response.SERVICE_NOT_AVAILABLE, "true")
    assert served(side, frames[found.end :]).frame_count == 0
    (refused,) = commands(side.slow(Request(opaque=found.frame_count).frame()))
    assert refused.code == Response.SERVICE_NOT_AVAILABLE and "shmqMaybeStored" not in refused.ext


def test_a_oneway_in_doubt_is_stored_once_and_not_answered(side: Side) -> None:
    oneway, frames = Request(flag=2).frame(), [Request(opaque=number).frame() for number in range(3)]
    found, end = in_doubt(side, lambda: served(side, oneway + b"".join(frames)))
    assert len(bodies_from(side, end)) == 1
    assert (found.end, found.frame_count, found.answers, found.queues) == (len(oneway), 1, b"", ())
