"""The questions of a slave to its master's broker, over TCP, by RocketMQ's own codes.

    21   every topic            201  every group            43   offsets of groups
    45   progress of delays     15   to the master: offsets that were committed here

Each call connects anew: it is made once a second at most, and the answer to the last one says nothing of the next.

Invariant: nothing is changed here; whatever answers, the outcome is what it said, or a ShmqError or OSError.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from shmq.errors import ProtocolError, RemoteError
from shmq.protocol.acl import KeyPair, key_pair_of, sign
from shmq.protocol.body import (
    BORN_POSITIONS,
    LOG_END,
    ONLY_FORWARD,
    TABLES_VERSION,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicTable,
    decode_body,
)
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command

ANSWER_SECONDS = 10.0
_READ_BYTES = 1 << 16
_BODY_BYTES_MAX = 64 << 20


class _OffsetTable(msgspec.Struct):
    offsetTable: dict[str, dict[int, int]] = {}


class _DelayTable(msgspec.Struct):
    offsetTable: dict[int, int] = {}


class TablesNotTold(ConnectionError):
    """The master's broker cannot be reached, or does not answer; which one, its text says."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Progress(NamedTuple):
    """Progress that tells of records which may not be here yet."""

    stamp: int  # where the master's log ended when it was sent
    offsets: dict[str, dict[int, int]]
    delays: dict[int, int]
    asked_end: int  # of this log, before it was asked for
    version: int | None  # of the master's topics and groups then; None: it does not say


class Told(NamedTuple):
    """What a master said of its tables; whether it is ours has to be known before that is taken over."""

    topics: TopicTable
    topics_end: int | None  # where the master's log ended before that; None: it does not say
    groups: tuple[SubscriptionGroupConfig, ...]
    progress: Progress


class Committed(NamedTuple):
    """An offset that a group committed on this host."""

    group: str
    topic: str
    queue_id: int
    offset: int


class MasterBroker:
    """The broker of one master.

    Args:
        address: host and port.
        log_end: returns where the log of this host ends now.
    """

    def __init__(self, address: tuple[str, int], log_end: Callable[[], int]) -> None:
        self._address = address
        self._log_end = log_end
        self._keys: KeyPair = key_pair_of(os.environ)

    @property
    def name(self) -> str:
        """Its address as text."""
        return "{}:{}".format(*self._address)

    def ask(self, seconds: float = ANSWER_SECONDS) -> Told:
        """Ask for everything; each piece of an answer is waited for so long.

        Raises:
            OSError: it cannot be reached.
            ShmqError: it refuses, or says what cannot be.
        """
        with self._connected(seconds) as connection:
            reply = self._reply(connection, Request.GET_ALL_TOPIC_CONFIG, {BORN_POSITIONS: "true"})
            topics = decode_body(reply.body, TopicTable)
            body = self._reply(connection, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
            groups = decode_body(body, SubscriptionGroupTable).subscriptionGroupTable.values()
            return Told(topics, _number_in(reply, LOG_END), tuple(groups), self._ask_progress(connection))

    def ask_progress(self, seconds: float = ANSWER_SECONDS) -> Progress:
        """Ask for what changes with every message that is read; raises as `ask`."""
        with self._connected(seconds) as connection:
            return self._ask_progress(connection)

    def tell(self, commits: Iterator[Committed]) -> None:
        """Say what was committed here, as far as its groups are not further on there; raises as `ask`."""
        with self._connected(ANSWER_SECONDS) as connection:
            for commit in commits:
                ext = {"consumerGroup": commit.group, "topic": commit.topic, "queueId": str(commit.queue_id)}
                ext |= {"commitOffset": str(commit.offset), ONLY_FORWARD: "true"}
                with contextlib.suppress(RemoteError):  # its topic or its messages are gone there
                    self._reply(connection, Request.UPDATE_CONSUMER_OFFSET, ext)

    @contextlib.contextmanager
    def _connected(self, seconds: float) -> Iterator[socket.socket]:
        """Connect for some questions."""
        try:
            with socket.create_connection(self._address, seconds) as connection:
                yield connection
        except (OSError, UnicodeError) as error:
            raise TablesNotTold(f"the broker at {self.name}: {error}") from error
        except ProtocolError as error:
            raise ProtocolError(
                f"what answers at {self.name} is no RocketMQ broker: {error}",
                hint="correct --master: it is the HOST:PORT of the master's --listen",
            ) from error

    def _ask_progress(self, connection: socket.socket) -> Progress:
        end = self._log_end()
        delays = self._offsets(connection, Request.GET_ALL_DELAY_OFFSET, _DelayTable)[0].offsetTable
        found, reply = self._offsets(connection, Request.GET_ALL_CONSUMER_OFFSET, _OffsetTable, {LOG_END: "true"})
        version = _number_in(reply, TABLES_VERSION)
        return Progress(_number_in(reply, LOG_END) or 0, found.offsetTable, delays, end, version)

    def _offsets(
        self, connection: socket.socket, code: Request, kind: type[Any], ext: Mapping[str, str] | None = None
    ) -> tuple[Any, Command]:
        reply = self._reply(connection, code, ext)
        # Maps with numbers for keys: RocketMQ writes them without quotes, whatever their length.
        return decode_body(reply.body or b"{}", kind, dialect_bytes_max=_BODY_BYTES_MAX), reply

    def _reply(self, connection: socket.socket, code: Request, ext: Mapping[str, str] | None = None) -> Command:
        ext = dict(ext or {})
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
                return reply


def _number_in(reply: Command, name: str) -> int | None:
    """What a master of ours says beside its answer."""
    text = reply.ext.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
