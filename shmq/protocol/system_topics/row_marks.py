"""The marks of staged rows: records of the topic rmq_sys_SHMQ_STAGED, queue 0.

queue 1   chunk | chunk | chunk …            hidden rows, as bodies of batches
queue 0   chunk   in one append with the chunk it names
          commit  the one marker of a unit: from here on its rows count
          begin   these rows are being copied now, and where the queues end before that
          done    every row of the unit is where it belongs
          drop    an attempt that never counts
"""

from typing import cast

import msgspec

from shmq.protocol.staged_rows import StagedPart
from shmq.typed_json import decoder

STAGED_TOPIC = "rmq_sys_SHMQ_STAGED"
STAGED_GROUP = "CID_RMQ_SYS_SHMQ_STAGED"  # its offset on queue 0: where a successor begins to read
MARKS_QUEUE, ROWS_QUEUE, STAGED_QUEUES = 0, 1, 2


class ChunkMark(msgspec.Struct, tag="chunk", tag_field="k"):
    """Chunk `n` of an attempt is at offset `o` of the rows' queue."""

    w: str
    b: int
    p: int
    a: str
    n: int
    o: int


class CommitMark(msgspec.Struct, tag="commit", tag_field="k"):
    """A unit of a batch is these attempts: `r` rows with checksum `s`."""

    w: str
    b: int
    u: int
    parts: list[StagedPart]
    r: int
    s: int
    t: int


class BeginMark(msgspec.Struct, tag="begin", tag_field="k"):
    """The `i`-th chunk of a unit goes to these queues: (topic, queue id, the queue's end before)."""

    w: str
    u: int
    i: int
    q: list[tuple[str, int, int]]


class DoneMark(msgspec.Struct, tag="done", tag_field="k"):
    """A unit is visible, and what it was."""

    w: str
    b: int
    u: int
    r: int
    s: int
    t: int


class DropMark(msgspec.Struct, tag="drop", tag_field="k"):
    """An attempt counts for nothing."""

    w: str
    b: int
    p: int
    a: str


Mark = ChunkMark | CommitMark | BeginMark | DoneMark | DropMark

_encoder = msgspec.json.Encoder()
_decoder = decoder(cast("type[Mark]", Mark))


def encode_mark(mark: Mark) -> bytes:
    """Return the body of a mark's record."""
    return _encoder.encode(mark)


def decode_mark(body: bytes) -> Mark | None:
    """Return the mark a body holds, None for what cannot be one."""
    try:
        mark: Mark = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return mark
