"""Registers the broker with name servers elsewhere: what to send to which of them, and when.

It is pure: the time comes in, and requests to send, connections to open and to close go out.

    down ──Connect──▶ connecting ──connected──▶ up ──Send 103 at once, on every change, every 30 s──▶ …
     ▲                    │                      │
     └── after ¼ … 4 s ───┴──── lost, or no answer in time: Cut ────┘           at the end: 104 to all that are up

    103 at once, and every 30 s     all topics
    103 on a change                 the topics that have changed, as RocketMQ's brokers do, to a name server that has
                                    taken the others; where it refuses them, all topics follow

A master that is fenced takes leave everywhere, over connections that stay, and registers again when it leads again:
another one may be the master, and RocketMQ's name servers take the last registration for the true one.

What is announced has a number, its edition: answers to changes of topics wait until it `is_registered`.

Invariants:
 1. Each name server has its own state: one that is dead, slow or refusing changes nothing for the others.
 2. At most one registration is under way to each; what changes meanwhile goes with the next one.
 3. A failure is reported once until the registration has succeeded again.
 4. With a key pair every request is signed; the secret is in no text.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from shmq.addresses import Address
from shmq.daemon.logic.effects import Report
from shmq.daemon.nameserver.registration import CRC_MASK, QueueEntry, Version
from shmq.protocol.acl import KeyPair, sign
from shmq.protocol.body import TopicConfig
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.route import MASTER_ID, RegisteredTopics, encode_registration

CONNECT_TIMEOUT_MS = 3_000
ANSWER_TIMEOUT_MS = 6_000  # RocketMQ's
REGISTER_INTERVAL_MS = 30_000
BACKOFF_MS = 250  # a name server that is started beside its brokers is known soon
BACKOFF_MS_MAX = 4_000  # an attempt costs nothing, and until it succeeds no client finds the broker

# RocketMQ 5.3 takes a first registration of exactly one topic for a part of a longer one and refuses it.
_PADDING = ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")  # system topics, announced without any permission
_PADDED = QueueEntry(1, 1, 0, 0)
_NO_KEYS = KeyPair()


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to this name server; then say `connected` or `lost`."""

    server: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request over the connection to this name server."""

    server: str
    command: Command


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection, or give up opening it, without a report."""

    server: str


RegistrarEffect = Connect | Send | Cut | Report


class _State(Enum):
    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"


@dataclass(slots=True)
class _Server:
    """One name server. `due_ms` ends the present state: when to connect, give up, register or lose patience."""

    name: str
    state: _State = _State.DOWN
    due_ms: int = 0
    backoff_ms: int = BACKOFF_MS
    address: str = ""  # of the broker, as registered with this name server
    waiting_for: int | None = None  # opaque of the registration that is under way
    told: Version | None = None
    owed: dict[str, QueueEntry] | None = None  # what has changed since then; None: all topics
    tells_changes: bool = False  # the registration that is under way, or was the last one, is of changes
    whole_due_ms: int = 0  # from when on all topics go there again
    told_edition: int = 0
    answered_edition: int = 0  # it knows this one, or refuses it
    is_known: bool = False  # the last registration succeeded
    complaint: str = ""

    @property
    def is_expected(self) -> bool:
        """Whether an answer of it may come soon: it is connected, or nothing speaks against it yet."""
        return self.state is _State.UP or not self.complaint


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """The broker that registers.

    Attributes:
        host: host that clients reach the broker at; "" takes our end of the connection to each name server.
        ha_port: where slaves get the log, 0 nowhere.
        broker_id: 0 is a master, anything else a slave.
    """

    cluster: str
    broker_name: str
    host: str
    port: int
    ha_port: int = 0
    broker_id: int = MASTER_ID


class Registrar:
    """The schedule for all name servers."""

    def __init__(self, servers: Sequence[str], broker: RegisteredBroker, keys: KeyPair = _NO_KEYS) -> None:
        self._broker = broker
        self._keys = keys
        self._servers = {name: _Server(name) for name in servers}
        self._version = Version()
        self._topics: Mapping[str, QueueEntry] = {}
        self._opaque = 0
        self._edition = 0
        self._is_fenced = False

    @property
    def edition(self) -> int:
        """The number of what was announced last."""
        return self._edition

    @property
    def registered(self) -> dict[str, str]:
        """The name servers that know the broker now, each with the address that is registered there."""
        return {link.name: link.address for link in self._servers.values() if link.is_known}

    def is_registered(self, edition: int) -> bool:
        """Whether nothing is to be waited for: each name server has answered this edition, or cannot be reached."""
        return self._is_fenced or all(
            link.answered_edition >= edition or not link.is_expected for link in self._servers.values()
        )

    def announce(self, topics: Mapping[str, QueueEntry], version: Version, now_ms: int) -> list[RegistrarEffect]:
        """Take the broker's topics; a version that differs from the last is registered everywhere at once."""
        changed = {name: queue for name, queue in topics.items() if self._topics.get(name) != queue}
        for link in self._servers.values():
            if link.owed is not None:
                link.owed |= changed
        self._version, self._topics = version, topics
        self._edition += 1
        return self.tick(now_ms)

    def ships_at(self, ha_port: int, now_ms: int) -> list[RegistrarEffect]:
        """Take the port where slaves get the log; another one than before is registered everywhere at once."""
        if ha_port == self._broker.ha_port:
            return []
        self._broker = replace(self._broker, ha_port=ha_port)
        for link in self._servers.values():
            link.told = link.owed = None
        return self.tick(now_ms)

    def fence(self, is_fenced: bool, now_ms: int) -> list[RegistrarEffect]:
        """Take leave of every name server, or register again; nothing where it is so already."""
        if is_fenced == self._is_fenced:
            return []
        self._is_fenced = is_fenced
        effects: list[RegistrarEffect] = []
        for link in self._servers.values():
            link.told = link.owed = None
            if is_fenced and link.state is _State.UP:
                effects.append(self._leave(link))
                link.waiting_for, link.is_known, link.due_ms = None, False, now_ms
        if is_fenced:
            return [*effects, Report("this broker is fenced: no name server gives its address to clients")]
        return self.tick(now_ms)

    def connected(self, server: str, local_host: str, now_ms: int) -> list[RegistrarEffect]:
        """The connection is open; `local_host` is our end of it."""
        link = self._servers[server]
        link.state, link.waiting_for, link.told, link.owed = _State.UP, None, None, None
        link.address = str(Address(self._broker.host or local_host, self._broker.port))
        link.due_ms = now_ms
        return self._look_at(link, now_ms)

    def answered(self, server: str, reply: Command, now_ms: int) -> list[RegistrarEffect]:
        """A command came from a name server; what answers no question of ours is left alone."""
        link = self._servers[server]
        if not reply.is_reply or link.state is not _State.UP or reply.opaque != link.waiting_for:
            return []
        link.waiting_for = None
        effects: list[RegistrarEffect] = []
        if reply.code != Response.SUCCESS and link.tells_changes:
            link.owed, link.due_ms = None, now_ms
            return self._look_at(link, now_ms)
        if not link.tells_changes:
            link.whole_due_ms = now_ms + REGISTER_INTERVAL_MS
        link.due_ms = link.whole_due_ms
        link.answered_edition = link.told_edition
        if reply.code == Response.SUCCESS:
            link.backoff_ms, link.complaint = BACKOFF_MS, ""
            if not link.is_known:
                effects.append(Report(f"registered as {link.address} with name server {server}"))
            link.is_known = True
        else:
            link.owed = None
            effects += self._complain(link, f"name server {server} refuses: {reply.code} {(reply.remark or '')[:200]}")
        return effects + self._look_at(link, now_ms)

    def lost(self, server: str, reason: str, now_ms: int) -> list[RegistrarEffect]:
        """The connection is gone, or could not be opened."""
        link = self._servers[server]
        if link.state is _State.DOWN:
            return []
        return self._fail(link, f"name server {server} is not reached: {reason or 'it closed the connection'}", now_ms)

    def tick(self, now_ms: int) -> list[RegistrarEffect]:
        """Do what is due."""
        return [effect for link in self._servers.values() for effect in self._look_at(link, now_ms)]

    def stop(self) -> list[RegistrarEffect]:
        """Unregister everywhere; nothing is due afterwards."""
        effects: list[RegistrarEffect] = []
        for link in self._servers.values():
            if link.state is _State.UP:
                effects.append(self._leave(link))
            if link.state is not _State.DOWN:
                effects.append(Cut(link.name))
        self._servers.clear()
        return effects

    # -- inside

    def _leave(self, link: _Server) -> Send:
        return Send(link.name, self._request(Request.UNREGISTER_BROKER, link, flag=FLAG_ONEWAY))

    def _look_at(self, link: _Server, now_ms: int) -> list[RegistrarEffect]:
        if self._is_fenced and link.state is _State.UP:
            return []
        if link.state is _State.UP and link.waiting_for is None and link.told != self._version:
            link.due_ms = now_ms
        if now_ms < link.due_ms:
            return []
        if link.state is _State.DOWN:
            link.state, link.due_ms = _State.CONNECTING, now_ms + CONNECT_TIMEOUT_MS
            return [Connect(link.name)]
        if link.state is _State.CONNECTING or link.waiting_for is not None:
            what = "connection" if link.state is _State.CONNECTING else "answer"
            return [Cut(link.name), *self._fail(link, f"name server {link.name}: no {what} in time", now_ms)]
        return [Send(link.name, self._registration(link, now_ms))]

    def _registration(self, link: _Server, now_ms: int) -> Command:
        link.tells_changes = link.owed is not None and link.told != self._version and now_ms < link.whole_due_ms
        if link.tells_changes and link.owed is not None:
            # Of another version than all topics, so that these are not passed over as known where the rest got lost.
            body = _body(link.owed, self._version._replace(timestamp=self._version.timestamp - 1))
        else:
            body = _body(_padded(self._topics), self._version)
        link.owed = {}
        crc = zlib.crc32(body) & CRC_MASK
        request = self._request(
            Request.REGISTER_BROKER, link, {"compressed": "false", "bodyCrc32": str(crc)}, body=body
        )
        link.waiting_for, link.told, link.told_edition = request.opaque, self._version, self._edition
        link.due_ms = now_ms + ANSWER_TIMEOUT_MS
        return request

    def _request(
        self, code: int, link: _Server, ext: Mapping[str, str] | None = None, *, flag: int = 0, body: bytes = b""
    ) -> Command:
        self._opaque += 1
        host, _, _ = link.address.rpartition(":")
        fields = {
            "brokerName": self._broker.broker_name,
            "brokerAddr": link.address,
            "clusterName": self._broker.cluster,
            "brokerId": str(self._broker.broker_id),
        }
        if code == Request.REGISTER_BROKER:
            # A mandatory field, also where no log is shipped: then it names RocketMQ's default, a closed port.
            nowhere = self._broker.port + 1 if self._broker.port < 65535 else 1
            fields["haServerAddr"] = f"{host}:{self._broker.ha_port or nowhere}"
        fields |= ext or {}
        if self._keys.access_key:
            fields = sign(fields, body, **self._keys._asdict())
        return Command(code, opaque=self._opaque, flag=flag, ext=fields, body=body)

    def _fail(self, link: _Server, reason: str, now_ms: int) -> list[RegistrarEffect]:
        link.state, link.waiting_for, link.told, link.owed = _State.DOWN, None, None, None
        link.due_ms = now_ms + link.backoff_ms
        link.backoff_ms = min(2 * link.backoff_ms, BACKOFF_MS_MAX)
        return self._complain(link, reason)

    def _complain(self, link: _Server, reason: str) -> list[RegistrarEffect]:
        is_news = link.is_known or not link.complaint
        link.is_known, link.complaint = False, reason
        return [Report(f"{reason}; tried again for as long as the broker runs")] if is_news else []


def _padded(topics: Mapping[str, QueueEntry]) -> Mapping[str, QueueEntry]:
    return topics if len(topics) != 1 else {**topics, **{name: _PADDED for name in _PADDING if name not in topics}}


def _body(topics: Mapping[str, QueueEntry], version: Version) -> bytes:
    table = {
        name: TopicConfig(name, queue.read_queues, queue.write_queues, queue.perm, topicSysFlag=queue.flags)
        for name, queue in topics.items()
    }
    return encode_registration(RegisteredTopics(table, version.to_body()))
