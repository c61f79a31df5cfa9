"""The marks of changed tables: records of the topic rmq_sys_SHMQ_TABLES, queue 0.

A master whose slaves confirm what it acknowledges stores one behind each change of a topic or a group, and answers the
change when the mark is confirmed. A slave takes over what a mark says before it reports that it has it.

    body   {"topics": [TopicConfig, …], "groups": [SubscriptionGroupConfig, …],      as they are now
            "born": {topic: log position}                           where the log ended when each of them was made
            "deletedTopics": [name, …], "deletedGroups": [name, …]}

Invariants:
 1. A mark says how things are when it is stored, as the tables do: one of before a copy of the tables is passed over.
 2. Marks are taken in the order of the log: the last one is right.
"""

import msgspec

from shmq.protocol.body import SubscriptionGroupConfig, TopicConfig
from shmq.typed_json import decoder

TABLES_TOPIC = "rmq_sys_SHMQ_TABLES"


class TablesMark(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Topics and groups that were changed, and those that are gone."""

    topics: list[TopicConfig] = []
    groups: list[SubscriptionGroupConfig] = []
    born: dict[str, int] = {}
    deleted_topics: list[str] = []
    deleted_groups: list[str] = []


_encoder = msgspec.json.Encoder()
_decoder = decoder(TablesMark)


def encode_tables_mark(mark: TablesMark) -> bytes:
    """Return the body of a mark's record."""
    return _encoder.encode(mark)


def decode_tables_mark(body: bytes) -> TablesMark | None:
    """Return the mark a body holds, None for what cannot be one."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
