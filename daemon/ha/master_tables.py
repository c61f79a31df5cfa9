"""What a slave copies beside the log: topics, groups and offsets, asked for by RocketMQ's own codes.

    21   every topic             made or changed here, never deleted
    201  every group             made, with its settings
    43   offsets of groups       raised here, never set back
    45   progress of delays      raised, as offsets of the group that reads the schedule topic

An answer says how things are now, not at which place of the log they became so: an offset may be ahead of the messages
that are here, and is then reached by them a moment later.

Invariants: (1) nothing is deleted or set back here on account of an answer; (2) whatever a master answers, the outcome
is a change of these tables, or a ShmqError or OSError that says why not.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import msgspec

from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.delay_levels import SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.errors import InvalidName, ProtocolError, RemoteError, UsageError
from shmq.message import QUEUES_MAX, check_group, check_topic
from shmq.protocol.acl import KeyPair, key_pair_of, sign
from shmq.protocol.body import (
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
    decode_body,
    parse_flush,
    parse_kind,
)
from shmq.protocol.codes import Request, Response, TopicFlush, TopicKind
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command

_ANSWER_SECONDS = 10.0
_READ_BYTES = 1 << 16
_BODY_BYTES_MAX = 64 << 20
_GROUP_SEPARATOR = "@"


class _OffsetTable(msgspec.Struct):
    offsetTable: dict[str, dict[int, int]] = {}


class _DelayTable(msgspec.Struct):
    offsetTable: dict[int, int] = {}


class MasterTables:
    """The tables of one master, and how they get into ours.

    Args:
        master: host and port of its broker.
        tables: ours; only `copy` and `make_topic` change them.
    """

    def __init__(self, master: tuple[str, int], tables: StoreTables) -> None:
        self._master = master
        self._tables = tables
        self._groups = GroupSettings(tables)
        self._keys: KeyPair = key_pair_of(os.environ)

    def copy(self) -> None:
        """Ask for everything, and take it over.

        Raises:
            OSError: the master cannot be reached.
            ShmqError: it refuses, says what cannot be, or there is no room for it.
        """
        with socket.create_connection(self._master, _ANSWER_SECONDS) as connection:
            topics = decode_body(self._ask(connection, Request.GET_ALL_TOPIC_CONFIG), TopicTable)
            for topic in topics.topicConfigTable.values():
                self._put_topic(topic)
            body = self._ask(connection, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            for group in decode_body(body, SubscriptionGroupTable).subscriptionGroupTable.values():
                check_group(group.groupName)
                self._groups.check(group)
                self._groups.put(group)
            self._put_offsets(self._offsets(connection, Request.GET_ALL_CONSUMER_OFFSET, _OffsetTable).offsetTable)
            delays = self._offsets(connection, Request.GET_ALL_DELAY_OFFSET, _DelayTable).offsetTable
            self._put_delays(delays)

    def make_topic(self, name: str, queues: int) -> None:
        """Make what a record is of and the master has no more: it was deleted there, and its records are still to come.

        Raises:
            ShmqError: no name of a topic, too many queues, or no room.
        """
        topic = self._tables.topic(name)
        most = max(queues, topic.read_queues if topic else 0)
        self._put_topic(TopicConfig(name, most, most, topic.perm if topic else 6))

    def _put_topic(self, config: TopicConfig) -> None:
        check_topic(config.topicName)
        counts = (config.readQueueNums, config.writeQueueNums)
        if not all(0 <= count <= QUEUES_MAX for count in counts) or not max(counts):
            raise ProtocolError(f"the master says that topic {config.topicName!r} has {counts[0]} queues to read")
        attributes = config.attributes if isinstance(config.attributes, dict) else {}
        text = ",".join(f"+{key.lstrip('+')}={value}" for key, value in attributes.items())
        kind, flush = _kind_of(text), TopicFlush.BROKER
        with contextlib.suppress(UsageError):
            flush = parse_flush(text) or flush
        known = self._tables.topic(config.topicName)
        wanted = (*counts, config.perm, config.topicSysFlag, int(kind))
        if known is None or known[1:6] != wanted:
            self._tables.topic_put(
                config.topicName,
                read_queues=counts[0],
                write_queues=counts[1],
                perm=config.perm,
                flags=config.topicSysFlag,
                kind=int(kind),
            )
        if (known.flush if known else 0) != int(flush):
            self._tables.topic_set_flush(config.topicName, int(flush))

    def _put_offsets(self, table: dict[str, dict[int, int]]) -> None:
        for name, offsets in table.items():
            topic_name, _, group = name.rpartition(_GROUP_SEPARATOR)
            topic = self._tables.topic(topic_name)
            if topic is None:
                continue
            try:
                check_group(group)
            except InvalidName:
                continue
            for queue_id, offset in offsets.items():
                if 0 <= queue_id < len(topic.queues):
                    self._raise(group, topic.queues[queue_id], offset)

    def _put_delays(self, table: dict[int, int]) -> None:
        topic = self._tables.topic(SCHEDULE_TOPIC)
        for level, offset in table.items():
            if topic is not None and 0 < level <= len(topic.queues):
                self._raise(SCHEDULE_GROUP, topic.queues[level - 1], offset)

    def _raise(self, group: str, queue: int, offset: int) -> None:
        slot = self._tables.offset_put(self._tables.group_put(group), queue)
        if offset > self._tables.committed(slot):
            self._tables.set_committed(slot, offset)

    def _offsets(self, connection: socket.socket, code: Request, kind: type[Any]) -> Any:
        body = self._ask(connection, code)
        # Maps with numbers for keys: RocketMQ writes them without quotes, whatever their length.
        return decode_body(body or b"{}", kind, dialect_bytes_max=_BODY_BYTES_MAX)

    def _ask(self, connection: socket.socket, code: Request) -> bytes:
        ext: dict[str, str] = {}
        if self._keys.access_key:
            ext = sign(ext, b"", **self._keys._asdict())
        connection.sendall(encode_command(Command(code, opaque=int(code), ext=ext)))
        decoder = CommandDecoder(frame_bytes_max=_BODY_BYTES_MAX)
        while True:
            reply = decoder.take()
            if reply is None:
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError(f"the master closed the connection at code {int(code)}")
                decoder.feed(data)
            elif reply.is_reply and reply.opaque == int(code):
                if reply.code != Response.SUCCESS:
                    raise RemoteError(reply.code, reply.remark or "")
                return reply.body


def _kind_of(attributes: str) -> TopicKind:
    """The kind of a topic; RocketMQ has attributes that mean nothing here."""
    try:
        return parse_kind(attributes)
    except UsageError:
        return TopicKind.NORMAL
