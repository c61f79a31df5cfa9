"""RocketMQ's names and numbers of a transaction: topics, properties, flags, and what an op record looks like.

    half    HALF_TOPIC, queue 0     the message, invisible: its topic and queue are properties
    op      OP_TOPIC, queue 0       tag d, body = the half's queue offset in that queue: the half is settled
    real    its own topic           the committed message: sysFlag 8, the half's log position in its header

A half that is settled any way (committed, rolled back, replaced by the copy that a check makes of it, given up) has an
op record. One that has none is open. A check's copy says more than the half it replaces (CHECK_TIMES, FIRST_HALF), so a
half has to leave room for that: where it does not, its message is refused when the transaction begins.
"""

from __future__ import annotations

from shmq.errors import MessageTooLarge
from shmq.properties import PROPERTIES_BYTES_MAX

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # what was never settled, for people to look at
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"  # its offsets on both topics are the progress of the checks
QUEUES = 1
QUEUE_ID = 0

PREPARED = 4  # the sysFlag's transaction bits, and what END_TRANSACTION says in commitOrRollback
COMMIT = 8
ROLLBACK = 12
UNKNOWN = 0
MASK = 12

IS_TRANSACTION = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
FIRST_HALF = "TRAN_PREPARED_QUEUE_OFFSET"  # in a copy: the queue offset of the half that the producer knows
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TELLS_PLACE = "tellsPlace"  # of END_TRANSACTION: the answer to a commit is to say where the message is; ours alone does
UNIQUE_KEY = "UNIQ_KEY"

OP_PROPERTIES = b"TAGS\x01d\x02"
_HALF_BYTES_MAX = PROPERTIES_BYTES_MAX - 128  # room for what a check adds, and for a record's checksum


def check_half(properties: bytes) -> bytes:
    """Return the properties of a half unchanged.

    Raises:
        MessageTooLarge: no check could say in them that it was made.
    """
    if len(properties) > _HALF_BYTES_MAX:
        raise MessageTooLarge(
            f"the properties of a message in a transaction need {len(properties)} bytes with those of RocketMQ, "
            f"{_HALF_BYTES_MAX} are allowed",
            hint="move large values into the body",
        )
    return properties


def op_body(queue_offset: int) -> bytes:
    """Return the body of the op record that settles the half at a queue offset."""
    return b"%d" % queue_offset
