"""The short way of a pull that repeats: from the bytes of a connection to an answer, without a command.

A consumer asks the same again and again; from one pull of a queue to its next only three numbers of the header differ.
So the broker's logic judges the first one, and says what such requests get (`PullPlan`); `Puller` (in C, see
`bindings/_core.pyi`) recognises the next by its bytes, reads the records, stores the offset that comes along, and
writes the answer from a template that Python's own encoder made. Whatever finds nothing, has to wait, is damaged or is
new goes the way of everything else.

    bytes of a TCP connection ──▶ Puller.serve ──▶ answers
                                       │
                                       └─ the first frame that is not plain, and what follows: the broker
                                                                                │ answers it with messages
                                  Puller.learn ◀── PullPlan ◀── Pulls.plan ◀────┘

That a number stands where it seems to stand is proved once for each key: with three other numbers in their places the
header has to read the same but for these.

Invariants:
 1. An answer is, to the byte, the one that the broker would have given; what it leaves in the tables is the same.
 2. A plan counts for one connection, whose offsets are of this life of the topic (`broker/groups/lives.py`), and while
    nothing has changed that it rests upon: tables, subscriptions, settings.
 3. Where accounts are needed the way is closed.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.broker.pulls.pulls import PullPlan, found
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.effects import Effect, Reply
from shmq.errors import ShmqError
from shmq.protocol.codes import Codec, Request, Response
from shmq.protocol.command import Command
from shmq.protocol.frame import Frame
from shmq.protocol.header import decode_header, encode_command
from shmq.shm.core import Puller, Store

PULLS = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)
_PREFIX_BYTES = 8  # of a frame; the core writes it
_CONNECTION_SHIFT = 32  # in an epoch, as the core reads it

# What a key has where a number was, by the name of its field; None is the number of the request.
_GAPS: dict[bytes, str | None] = {b"\1": None, b"\2": "queueOffset", b"\3": "commitOffset"}
_PROBES = {b"\1": 1_987_654_321, b"\2": 71_828_182_845, b"\3": 14_142_135_623}
_OPAQUE, _NEXT, _LEAST, _MOST = range(1, 5)  # kinds of pieces, as `Puller` counts them


class Pulled(NamedTuple):
    """What became of some bytes: `end` is where the first frame begins that was not served."""

    end: int
    code: int  # of the requests that were served
    answers: tuple[bytes, ...]


class Plans(Protocol):
    """Finds what pulls get."""

    def plan(self, connection_id: int, command: Command) -> PullPlan | None:
        """Return what a connection's pulls like this get that find messages; None where each has to be judged."""

    @property
    def grounds(self) -> object:
        """What plans rest upon beside the tables; equal as long as nothing has changed."""


class PullPath:
    """Serves pulls that repeat for all connections of a process."""

    def __init__(self, store: Store, plans: Plans, admission: Admission) -> None:
        self._puller = Puller(store, answer=answer_pieces())
        self._plans = plans
        self._grounds = plans.grounds
        self._admission = admission
        self._epoch = 0

    @property
    def is_open(self) -> bool:
        """Whether pulls may go this way; not where accounts are needed."""
        return self._admission.rules is None

    def serve(self, connection_id: int, data: bytes, limits: BridgeLimits) -> Pulled:
        """Answer the plain pulls at the front of some bytes of a connection, until they are a turn's share."""
        bounds = limits.frame_bytes_max, limits.commands_per_turn, limits.write_bytes_high
        return Pulled._make(self._puller.serve(data, *bounds, self._epoch_of(connection_id)))

    def see(self, frame: Frame, command: Command, effects: Sequence[Effect]) -> None:
        """Take note of a pull that was carried out; if it found messages, more of its kind will come."""
        first = effects[0] if effects and self.is_open else None
        if not isinstance(first, Reply) or first.command.code != Response.SUCCESS or command.is_reply:
            return
        if frame.codec is not Codec.JSON or frame.body:
            return
        epoch = self._epoch_of(first.connection_id)
        key = self._puller.unknown_key(frame.header, epoch)
        if key is None or not _is_true(key, command):
            return
        plan = self._plans.plan(first.connection_id, command)
        if plan is not None:
            self._puller.learn(key, epoch=epoch, code=command.code, **plan._asdict())

    def _epoch_of(self, connection_id: int) -> int:
        if (grounds := self._plans.grounds) != self._grounds:
            self._grounds = grounds
            self._epoch += 1
        return connection_id << _CONNECTION_SHIFT | self._epoch


def _is_true(key: bytes, command: Command) -> bool:
    """Say whether the numbers that were cut out are the request's, its offset and the one that comes along."""
    header = re.sub(b"[\1\2\3]", lambda gap: b"%d" % _PROBES[gap[0]], key)
    try:
        probe = decode_header(Frame(Codec.JSON, header, b""))
    except ShmqError:
        return False
    fields = {name: str(_PROBES[gap]) for gap, name in _GAPS.items() if name is not None}
    same = probe.code, probe.flag, probe.remark
    return (
        probe.opaque == _PROBES[b"\1"]
        and probe.ext == command.ext | fields
        and same == (command.code, 0, None)
        and command.flag == 0
    )


def answer_pieces() -> tuple[bytes | int, ...]:
    """Return the header of an answer with messages, cut where a number belongs that only the pull decides."""
    marks = {b"@next@": _NEXT, b"@least@": _LEAST, b"@most@": _MOST, b"%d" % _PROBES[b"\1"]: _OPAQUE}
    answer = found(*(mark.decode() for mark in list(marks)[:3]))
    request = Command(code=0, opaque=_PROBES[b"\1"], codec=Codec.JSON)
    header = encode_command(request.reply(answer.code, ext=answer.ext, remark=answer.remark))[_PREFIX_BYTES:]
    return cut(header, marks)


def cut(header: bytes, marks: dict[bytes, int]) -> tuple[bytes | int, ...]:
    """Return a text in pieces: its marks as numbers, and what stands between them."""
    assert all(header.count(mark) == 1 for mark in marks), header
    parts: Sequence[bytes] = re.split(b"(" + b"|".join(map(re.escape, marks)) + b")", header)
    return tuple(marks.get(part, part) for part in parts if part)
