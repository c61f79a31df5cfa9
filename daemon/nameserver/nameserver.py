"""The name server's decisions: requests in, effects out. No socket, no clock, no thread, no file.

`NameServer` sends each request to its handler, and registers the broker that is embedded in the same process.

    connected -> handle* -> disconnected        tick about once a second, whatever happens

Invariants:
 1. Every request that is not oneway gets exactly one Reply; an unknown code is answered too, so that no client waits.
 2. A request that fails changes nothing.
 3. After `disconnected` nothing stands that the connection registered last.
"""

from collections.abc import Sequence

from shmq.addresses import Address
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.dispatch import Dispatch
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.requests import Answer, Call, reply_to
from shmq.daemon.nameserver.admin_requests import AdminRequests, ConfigRequests, KeyValueRequests
from shmq.daemon.nameserver.broker_requests import BrokerRequests
from shmq.daemon.nameserver.embedded_broker import Embedded, EmbeddedBroker
from shmq.daemon.nameserver.key_values import Forgetful, Keeper, KeyValues
from shmq.daemon.nameserver.registration import Claim, Identity, Version
from shmq.daemon.nameserver.registry import EMBEDDED, Registry
from shmq.daemon.nameserver.route_requests import RouteRequests
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import ShmqError
from shmq.protocol.command import Command


class NameServer(Dispatch):
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
        super().__init__(admission)
        self._settings = settings or NameServerSettings()
        self._registry = Registry(self._settings)
        self._scanned_ms: int | None = None
        self._embedded = embedded
        self._embedded_edition: tuple[int, int] | None = None
        key_values = KeyValues(keeper or Forgetful(), self._settings)
        config = ConfigRequests()
        self._handlers = {
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
        host = address.rpartition(":")[0]
        claim = Claim(
            Identity(broker.cluster, broker.broker_name, broker.broker_id, address),
            ha_address=f"{host}:{broker.ha_port}" if broker.ha_port else "",
            version=Version(state=broker.epoch, counter=broker.version),
            topics=broker.topics,
        )
        self._registry.register(claim, connection_id=EMBEDDED, host="", now_ms=now_ms)

    def handle(self, connection_id: int, command: Command, now_ms: int) -> Sequence[Effect]:
        assert connection_id != EMBEDDED
        if connection_id not in self._connections or command.is_reply:
            return []
        news = self._look_at_embedded(now_ms)
        return [*super().handle(connection_id, command, now_ms), *news]

    def _effects(self, call: Call, answer: Answer) -> list[Effect]:
        reply = [] if call.command.is_oneway else [reply_to(call, answer)]
        return [*reply, *map(Report, answer.reports), *answer.effects]

    def _look_at_embedded(self, now_ms: int) -> list[Effect]:
        """Register our own broker if it has changed; a refusal is reported once for each change."""
        if self._embedded is None or self._embedded.edition == self._embedded_edition:
            return []
        broker = self._embedded.broker()
        self._embedded_edition = broker.version, broker.ha_port
        try:
            self.register(broker, now_ms)
        except ShmqError as error:
            return [Report(f"the topics of broker {broker.broker_name} are not in the routes: {error}")]
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


def _gone(cluster: str, broker_name: str, broker_id: int, address: str, reason: str) -> Report:
    return Report(f"broker {broker_name} ({broker_id}, {address}) of {cluster} is gone: {reason}")
