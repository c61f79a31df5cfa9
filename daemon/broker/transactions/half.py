"""The records of a transaction, each made from another.

Each step stores what RocketMQ stores.

    sent message -> half                REAL_TOPIC and REAL_QID say where it belongs; no transaction bits: a half
                                        is found in its own queue like any message, and in no other
    half         -> real message        sysFlag 8, the half's log position; properties as they are
    half         -> half, once more     TRANSACTION_CHECK_TIMES + 1, and which half the producer knows
    half         -> expired             unchanged, in a topic of its own
"""

from dataclasses import replace

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.daemon.broker.records.stored_record import StoredRecord, copy_of
from shmq.protocol.system_topics import transaction

_INT_DIGITS_MAX = 9


def is_prepared(properties: bytes) -> bool:
    """Say whether a message that is sent is the first half of a transaction."""
    return (
        b"TRAN_MSG\x01" in properties and (property_of(properties, transaction.IS_TRANSACTION) or "").lower() == "true"
    )


def half_of(record: NewRecord, topic: str, queue_id: int) -> NewRecord:
    """Return what is stored for a message of a transaction until that is settled.

    Raises:
        MessageTooLarge: its properties leave no room for the checks.
    """
    text = with_properties(record.properties, {transaction.REAL_TOPIC: topic, transaction.REAL_QUEUE_ID: str(queue_id)})
    return replace(record, properties=transaction.check_half(text), sys_flag=record.sys_flag & ~transaction.MASK)


def real_of(half: StoredRecord) -> NewRecord:
    """Return the committed message."""
    copy = _copy_of(half)
    copy.sys_flag |= transaction.COMMIT
    copy.prepared_position = half.log_position
    return copy


def checked_of(half: StoredRecord, *, checks: int, first: int) -> NewRecord:
    """Return the half that takes the place of another when that is asked about for the `checks`-th time."""
    copy = _copy_of(half)
    copy.properties = with_properties(
        copy.properties, {transaction.CHECK_TIMES: str(checks), transaction.FIRST_HALF: str(first)}
    )
    return copy


def expired_of(half: StoredRecord) -> NewRecord:
    """Return what is stored of a half that was not settled in time."""
    return _copy_of(half)


def resumed_of(expired: StoredRecord) -> NewRecord:
    """Return the half of an expired transaction that is to be asked about again: a new one."""
    copy = _copy_of(expired)
    copy.properties = with_properties(copy.properties, {transaction.CHECK_TIMES: "0", transaction.FIRST_HALF: None})
    return copy


def op_of(queue_offset: int) -> NewRecord:
    """Return the record that says a half is settled."""
    return NewRecord(transaction.op_body(queue_offset), transaction.OP_PROPERTIES)


def number_in(half: StoredRecord, key: str, missing: int) -> int:
    """Return a property that is a number, `missing` if it is none."""
    text = property_of(half.properties, key) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _INT_DIGITS_MAX else missing


def is_of_local_producer(half: StoredRecord) -> bool:
    """Say whether a process of this host stored it by itself: such a one has no port."""
    return not any(half.born_host[-4:])


def _copy_of(half: StoredRecord) -> NewRecord:
    copy = copy_of(half, with_properties(half.properties, {}))
    copy.sys_flag &= ~transaction.MASK
    return copy
