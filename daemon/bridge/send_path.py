"""The short way of a plain send: from the bytes of a connection into the log, and an answer, without a command.

A plain send is a SEND frame that needs no interpretation: no transaction, no delay, no new topic. `Sender` (in C, see
`bindings/_core.pyi`) reads the frame, appends the message and writes the answer from a template that Python's own
encoder made; at the first frame that is anything else it stops, and the broker's logic takes over at that frame.
Nothing in it waits. The path is closed where accounts need more than the message. Where a message counts on the disk
only, its answer is written with the others' and held by the caller (`held_answers.py`). A message that is stored while
the log is fenced is answered here, with the error of the append: the broker would store it again.

Python alone took 50 to 150 µs a message, this takes 1.3 µs with 64 in flight. A test sends the same frames both ways
and compares answers and records to the byte.

    bytes of a TCP connection ──▶ Sender.serve ──▶ answers, queues with new messages; the same for when they are on disk
                                       │
                                       └─ the first frame that is not plain, and what follows: the broker

Invariant: an answer is, to the byte, the one the broker would have given. So the way is closed where the broker looks
at more than the message: with accounts.
"""

from typing import NamedTuple

from shmq.addresses import Address
from shmq.daemon.bridge.pull_path import cut
from shmq.daemon.bridge.store.log import StoreLog
from shmq.daemon.broker.records.message_id import host_bytes, offset_message_id
from shmq.daemon.broker.sends.header import sent_ext
from shmq.daemon.broker.sends.sends import cluster_text, forbidden_topics
from shmq.daemon.broker.sends.unavailable import unavailable
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import ShmqError
from shmq.protocol.codes import Codec
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.core import CoreError, Sender

_FRAMES_MAX = 1024  # of one call: about a millisecond
_PREFIX_BYTES = 8  # of a frame; the core writes it
_LOG_POSITION_CHARACTERS = 16  # at the end of a message id

# Kinds of pieces, as `Sender` counts them.
_OPAQUE_TEXT, _MESSAGE_ID, _QUEUE_ID, _QUEUE_OFFSET, _OPAQUE_INT, _BYTES_THAT_FOLLOW = range(1, 7)
_SIZED = 16

_OPAQUE = 1_987_654_321  # stands for any; no other field of an answer looks like it


class Held(NamedTuple):
    """What waits for the log to be on disk up to a position: answers, and queues whose messages are not visible yet."""

    end: int
    answers: bytes
    queues: tuple[int, ...]
    frame_count: int


class Served(NamedTuple):
    """What became of some bytes: `end` is where the first frame begins that was not served.

    `doubted_count` of the frames, the last one or none, was stored and is not acknowledged; its answer says so.
    """

    end: int
    frame_count: int
    answers: bytes
    queues: tuple[int, ...]
    held: Held | None
    doubted_count: int = 0


class Origin(NamedTuple):
    """What a connection adds to its messages and answers."""

    born_host: bytes
    address: bytes


class SendPath:
    """Serves plain sends of all connections of a process."""

    def __init__(self, log: StoreLog, settings: BrokerSettings) -> None:
        self._log = log
        self._settings = settings
        self._advertised = settings.advertised
        self._body_bytes_max = settings.message_bytes_max
        self._serve = self._sender().serve

    @property
    def flush_timeout(self) -> float:
        """Seconds after which a sender that waits for the disk gets FLUSH_DISK_TIMEOUT."""
        return self._settings.flush_timeout_ms / 1000

    def origin(self, remote: Address, local: Address) -> Origin:
        """Return what all messages of one connection have in common."""
        shown = offset_message_id(self._advertised or local, 0)[:-_LOG_POSITION_CHARACTERS]
        return Origin(host_bytes(remote), shown.encode())

    def serve(self, data: bytes, origin: Origin, *, frame_bytes_max: int) -> Served:
        """Store the plain sends at the front of some bytes of a connection."""
        if self._body_bytes_max != self._settings.message_bytes_max:
            self._body_bytes_max = self._settings.message_bytes_max
            self._serve = self._sender().serve
        end, count, answers, queues, held, doubted = self._serve(data, 0, frame_bytes_max, _FRAMES_MAX, *origin)
        if doubted is not None:
            at, error = doubted
            answers += _refusal(data[at:end], error)
        return Served(end, count, answers, queues, held and Held._make(held), int(doubted is not None))

    def _sender(self) -> Sender:
        return self._log.sender(
            refused=forbidden_topics(self._settings.cluster),
            suffix=cluster_text(self._settings.cluster),
            body_bytes_max=self._body_bytes_max,
            properties_bytes_max=self._settings.properties_bytes_max,
            answers=(answer_pieces(Codec.JSON), answer_pieces(Codec.BINARY)),
        )


def _refusal(frame: bytes, error: CoreError) -> bytes:
    """Return the broker's answer to a send that failed so."""
    assert isinstance(error, ShmqError)  # the core's errors are public ones as well
    decoder = CommandDecoder(frame_bytes_max=len(frame))
    decoder.feed(frame)
    command = decoder.take()
    assert command is not None
    answer = unavailable(error)
    reply = command.reply(answer.code, ext=answer.ext, remark=answer.remark)
    return b"" if command.is_oneway else encode_command(reply)


def answer_pieces(codec: Codec) -> tuple[bytes | int, ...]:
    """Return the header of an answer to a send, cut where a number or a text belongs that only the send decides."""
    marks = {_MESSAGE_ID: "@message@", _QUEUE_ID: "@queue@", _QUEUE_OFFSET: "@offset@"}
    answer = Command(code=0, opaque=_OPAQUE, codec=codec).reply(ext=sent_ext(*marks.values()))
    header = encode_command(answer)[_PREFIX_BYTES:]
    if codec == Codec.JSON:
        tokens = {str(_OPAQUE).encode(): _OPAQUE_TEXT}
        return cut(header, tokens | {mark.encode(): kind for kind, mark in marks.items()})
    ext_bytes = sum(6 + len(key) + len(value) for key, value in answer.ext.items())
    tokens = {_OPAQUE.to_bytes(4): _OPAQUE_INT, ext_bytes.to_bytes(4): _BYTES_THAT_FOLLOW}
    return cut(header, tokens | {len(mark).to_bytes(4) + mark.encode(): _SIZED + kind for kind, mark in marks.items()})
