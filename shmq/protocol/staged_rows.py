"""Rows that are staged at a broker and become visible together, once: names and bodies both sides use.

These are the fields of STAGE_ROWS, COMMIT_ROWS, DROP_ROWS and STAGED_STATE.

    writer        a streaming query, a job; it outlives its processes
    batch         a number that grows; of one writer
    unit          what becomes visible together: a partition of the batch, or WHOLE of it
    attempt       one try to write a partition; what several tries staged, only one of them counts
    chunk         rows of an attempt for one queue: the body of STAGE_ROWS, in the form of a batch

A batch below the last one of a unit is refused, one that is there already is answered with what it was: how many rows,
and their checksum, a sum that does not depend on their order.

The broker copies committed rows to their queues, and writes a begin mark with each queue's end first, so a successor
finds what a killed broker has copied. This costs the log the rows twice. RocketMQ's half messages would need an op
record, a check and a Python object for each row; a high-water mark per queue would drop other rows than before when a
task's rows come in another order.
"""

from __future__ import annotations

from typing import Final

import msgspec

WHOLE: Final = -1
STAGED: Final = "staged"
COMMITTED: Final = "committed"
ATTEMPT_CHARACTERS_MAX: Final = 32
WRITER_CHARACTERS_MAX: Final = 64
CHECKSUM_MASK: Final = (1 << 63) - 1


class StagedPart(msgspec.Struct, array_like=True):
    """One attempt that counts: its partition, its name, how many chunks it staged."""

    partition: int
    attempt: str
    chunks: int
