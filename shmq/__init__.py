"""The public API of shmq: what `import shmq` gives, re-exported and nothing else.

Every name is loaded on first use, so that `import shmq` costs about a millisecond and a program pays only for what it
touches: no sockets before `connect()`, no msgspec before a typed topic, no asyncio before `import shmq.aio`.

    connect() ─▶ Connection ─▶ Producer · Subscription · SimpleConsumer · PullConsumer · Topic · admin
    Message · Receipt · Slot      what travels                Retry · Reject · Action      what a listener may say
    ShmqError and below           what goes wrong             shmq.aio                     the asyncio twin
                                                              shmq.testing                 a real broker for tests
"""

from __future__ import annotations

from shmq.version import __version__

TYPE_CHECKING = False  # type checkers know the name; importing it from typing is most of what this import cost
if TYPE_CHECKING:
    from shmq.client.administration.admin import Admin, DeadLetter
    from shmq.client.administration.group import Group, GroupLag
    from shmq.client.administration.interface import ResetStep
    from shmq.client.connection import Connection, connect
    from shmq.client.consumers.consumer import Subscription
    from shmq.client.consumers.pull import PullConsumer
    from shmq.client.consumers.simple import SimpleConsumer
    from shmq.client.producers.producer import Producer
    from shmq.client.redelivery.redelivery import Action
    from shmq.client.topic import Codec, Topic, TypedMessage, TypedSubscription
    from shmq.client.transactions.transaction import COMMIT, ROLLBACK, UNKNOWN, Transaction, TxState
    from shmq.errors import (
        BrokerBusy,
        BrokerNotRunning,
        ConnectError,
        ConsumeError,
        CorruptionError,
        DamagedMessage,
        FilterSyntaxError,
        FlowControl,
        ForeignNamespace,
        GroupNotFound,
        InvalidName,
        LeaseExpired,
        MeasuredError,
        MessageNotFound,
        MessageTooLarge,
        NotFound,
        NotMaster,
        OffsetOutOfRange,
        PermissionDenied,
        ProtocolError,
        ReadOnlyStore,
        Reject,
        RemoteError,
        RequestTimeout,
        Retry,
        SegmentError,
        SegmentFull,
        SendError,
        SendTimeout,
        ShmqError,
        StoreError,
        StoreLocked,
        SubscriptionConflict,
        TopicExists,
        TopicNotFound,
        TransactionError,
        UsageError,
        VersionMismatch,
        WrongKind,
    )
    from shmq.figures.model import QueueInfo, QueueLag, TopicInfo
    from shmq.figures.verdict import Finding, Health, Verdict
    from shmq.shm.core import Message, Receipt, Slot

_HOMES = {
    "shmq.client.administration.admin": ("Admin", "DeadLetter"),
    "shmq.client.connection": ("Connection", "connect"),
    "shmq.client.administration.group": ("Group", "GroupLag"),
    "shmq.client.administration.interface": ("ResetStep",),
    "shmq.client.redelivery.redelivery": ("Action",),
    "shmq.figures.model": ("QueueInfo", "QueueLag", "TopicInfo"),
    "shmq.figures.verdict": ("Finding", "Health", "Verdict"),
    "shmq.client.producers.producer": ("Producer",),
    "shmq.client.consumers.pull": ("PullConsumer",),
    "shmq.client.consumers.simple": ("SimpleConsumer",),
    "shmq.client.consumers.consumer": ("Subscription",),
    "shmq.client.transactions.transaction": ("COMMIT", "ROLLBACK", "UNKNOWN", "Transaction", "TxState"),
    "shmq.client.topic": ("Codec", "Topic", "TypedMessage", "TypedSubscription"),
    "shmq.shm.core": ("Message", "Receipt", "Slot"),
    "shmq.errors": (
        "BrokerBusy",
        "BrokerNotRunning",
        "ConnectError",
        "ConsumeError",
        "CorruptionError",
        "DamagedMessage",
        "FilterSyntaxError",
        "FlowControl",
        "ForeignNamespace",
        "GroupNotFound",
        "InvalidName",
        "LeaseExpired",
        "MeasuredError",
        "MessageNotFound",
        "MessageTooLarge",
        "NotFound",
        "NotMaster",
        "OffsetOutOfRange",
        "PermissionDenied",
        "ProtocolError",
        "ReadOnlyStore",
        "Reject",
        "RemoteError",
        "RequestTimeout",
        "Retry",
        "SegmentError",
        "SegmentFull",
        "SendError",
        "SendTimeout",
        "ShmqError",
        "StoreError",
        "StoreLocked",
        "SubscriptionConflict",
        "TopicExists",
        "TopicNotFound",
        "TransactionError",
        "UsageError",
        "VersionMismatch",
        "WrongKind",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "COMMIT",
    "ROLLBACK",
    "UNKNOWN",
    "Action",
    "Admin",
    "BrokerBusy",
    "BrokerNotRunning",
    "Codec",
    "ConnectError",
    "Connection",
    "ConsumeError",
    "CorruptionError",
    "DamagedMessage",
    "DeadLetter",
    "FilterSyntaxError",
    "Finding",
    "FlowControl",
    "ForeignNamespace",
    "Group",
    "GroupLag",
    "GroupNotFound",
    "Health",
    "InvalidName",
    "LeaseExpired",
    "MeasuredError",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "NotFound",
    "NotMaster",
    "OffsetOutOfRange",
    "PermissionDenied",
    "Producer",
    "ProtocolError",
    "PullConsumer",
    "QueueInfo",
    "QueueLag",
    "ReadOnlyStore",
    "Receipt",
    "Reject",
    "RemoteError",
    "RequestTimeout",
    "ResetStep",
    "Retry",
    "SegmentError",
    "SegmentFull",
    "SendError",
    "SendTimeout",
    "ShmqError",
    "SimpleConsumer",
    "Slot",
    "StoreError",
    "StoreLocked",
    "Subscription",
    "SubscriptionConflict",
    "Topic",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "Transaction",
    "TransactionError",
    "TxState",
    "TypedMessage",
    "TypedSubscription",
    "UsageError",
    "Verdict",
    "VersionMismatch",
    "WrongKind",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'shmq' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
