"""The name server's decisions: requests in, effects out. No socket, no clock, no thread, no file.

Owns which request goes where, the life of connections, and the broker that is embedded in the same process. It does not
know how bytes arrive.

    connected -> handle* -> disconnected        tick about once a second, whatever happens

Invariants:
 1. Every request that is not oneway gets exactly one Reply; an unknown code is answered too, so that nobody waits.
 2. A request that fails changes nothing.
 3. After `disconnected` nothing stands that the connection registered last.
"""

from collections.abc import Sequence

from shmq.daemon.broker.access.admission import Admission
from shmq.daemon.broker.effects import Effect, Reply, Report
from shmq.daemon.broker.requests import Address, Answer, Call, Connection, Handler, Peer
from shmq.daemon.nameserver.admin_requests import AdminRequests
from shmq.daemon.nameserver.broker_requests import BrokerRequests
from shmq.daemon.nameserver.config_requests import ConfigRequests
from shmq.daemon.nameserver.embedded import Embedded, EmbeddedBroker
from shmq.daemon.nameserver.key_value_requests import KeyValueRequests
from shmq.daemon.nameserver.key_values import Forgetful, Keeper, KeyValues
from shmq.daemon.nameserver.registration import Claim, Identity, Version
from shmq.daemon.nameserver.registry import EMBEDDED, Registry
from shmq.daemon.nameserver.route_requests import RouteRequests
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.route import MASTER_ID


class NameServer:
    """One name server's logic; single-threaded.

    Args:
        keeper: keeps the KV configuration across restarts.
        embedded: the broker of this process; it is looked at before every request, so that a topic is in the routes as
            soon as it exists.
        admission: shared with the broker beside it.
    """

    def __init__(
        self,
        settings: NameServerSettings | None = None,
        keeper: Keeper | None = None,
        embedded: Embedded | None = None,
        *,
        admission: Admission | None = None,
    ) -> None:
        self._settings = settings or NameServerSettings()
        self._connections: dict[int, Connection] = {}
        self._registry = Registry(self._settings)
        self._admission = admission or Admission()
        self._scanned_ms: int | None = None
        self._embedded = embedded
        self._embedded_version: int | None = None
        key_values = KeyValues(keeper or Forgetful(), self._settings)
        config = ConfigRequests()
        self._handlers: dict[int, Handler] = {
            **BrokerRequests(self._registry, key_values, config, self._settings).handlers(),
            **RouteRequests(self._registry, key_values, config).handlers(),
            **AdminRequests(self._registry).handlers(),
            **KeyValueRequests(key_values).handlers(),
            **config.handlers(),
        }

    def register(self, broker: EmbeddedBroker, now_ms: int) -> None:
        """Take the embedded broker's topics; nothing happens when `version` is the one already known.

        Raises:
            ProtocolError: a name or address that no route can carry.
            ShmqError: there are more topics than a name server holds.
        """
        address = broker.address or str(Address("", broker.port))
        claim = Claim(
            Identity(broker.cluster, broker.broker_name, MASTER_ID, address),
            version=Version(counter=broker.version),
            topics=broker.topics,
        )
        self._registry.register(claim, connection_id=EMBEDDED, host="", now_ms=now_ms)

    def connected(
        self,
        connection_id: int,
        peer: Peer | None,
        now_ms: int,
        *,
        remote: Address | None = None,
        local: Address | None = None,
    ) -> None:
        """Take note of a new connection; `remote` and `local` are its ends."""
        assert connection_id not in self._connections and connection_id != EMBEDDED
        self._connections[connection_id] = Connection(connection_id, peer, now_ms, remote, local)

    @property
    def served_codes(self) -> frozenset[int]:
        """The request codes that have a handler."""
        return frozenset(self._handlers)

    def is_attached(self, connection_id: int) -> bool:
        """Say whether a connection has shown an account; nobody attaches to a name server."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.has_account

    def handle(self, connection_id: int, command: Command, now_ms: int) -> list[Effect]:
        """Serve one command of a connection."""
        connection = self._connections.get(connection_id)
        if connection is None or command.is_reply:
            return []
        news = self._look_at_embedded(now_ms)
        handler = self._handlers.get(command.code)
        if handler is None or not self._admission.is_offered(connection, command.code):
            remark = f" request type {command.code} not supported"
            unknown = command.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return news if command.is_oneway else [Reply(connection_id, unknown), *news]
        try:
            self._admission.check(connection, command)
            answer = handler(Call(connection, command, now_ms))
        except ShmqError as error:
            return news if command.is_oneway else [Reply(connection_id, failure_reply(command, error)), *news]
        return [*_effects(connection_id, command, answer or Answer()), *news]

    def _look_at_embedded(self, now_ms: int) -> list[Effect]:
        """Register our own broker if it has changed; a refusal is told once for each change."""
        if self._embedded is None or self._embedded.version == self._embedded_version:
            return []
        broker = self._embedded.broker()
        self._embedded_version = broker.version
        try:
            self.register(broker, now_ms)
        except ShmqError as error:
            return [Report(f"the topics of broker {broker.broker_name} are not in the routes: {error}")]
        return []

    def arrived(self, queues: Sequence[int], now_ms: int) -> list[Effect]:
        """Nobody waits for messages here."""
        return []

    def flushed(self, durable_end: int, now_ms: int) -> list[Effect]:
        """Nobody waits for the disk here."""
        return []

    def woken(self, now_ms: int) -> list[Effect]:
        """Nothing here asks for it."""
        return []

    def disconnected(self, connection_id: int, now_ms: int) -> list[Effect]:
        """Forget a connection and the brokers that registered over it. Harmless when it is unknown."""
        if self._connections.pop(connection_id, None) is None:
            return []
        return [
            _gone(*member.identity, "its connection closed") for member in self._registry.disconnected(connection_id)
        ]

    def tick(self, now_ms: int) -> list[Effect]:
        """Every ten seconds: forget the brokers that have fallen silent."""
        if self._scanned_ms is not None and now_ms - self._scanned_ms < self._settings.scan_interval_ms:
            return []
        self._scanned_ms = now_ms
        return [_gone(*member.identity, "it was silent") for member in self._registry.expire(now_ms)]


def _effects(connection_id: int, command: Command, answer: Answer) -> list[Effect]:
    effects: list[Effect] = []
    if not command.is_oneway:
        reply = command.reply(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
        effects.append(Reply(connection_id, reply))
    effects += map(Report, answer.reports)
    effects += answer.effects
    return effects


def _gone(cluster: str, broker_name: str, broker_id: int, address: str, reason: str) -> Report:
    return Report(f"broker {broker_name} ({broker_id}, {address}) of {cluster} is gone: {reason}")
