"""Serves the other bridges of this broker at the primary one.

The requests come over connections to the control socket, from processes of this broker only.

    RELAY           from here on the connection is a TCP client's that another bridge accepted: it has that client's
                    addresses and rights, and what is sent to it reaches the client
    WATCH_GROUPS    the answer is what all groups subscribe to, and in its header the settings that can be changed;
                    each change follows as GROUP_CHANGED or SETTINGS_CHANGED

Invariants:
 1. Only processes of the broker's own user may ask for either.
 2. A relayed connection has the rights of a TCP client: what needs an account needs one there too.
"""

from collections.abc import Sequence

import msgspec

from shmq.addresses import Address, parse_address
from shmq.daemon.broker.administration.config import tunables_of
from shmq.daemon.broker.groups.consumer_group import ConsumerGroup
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Notify
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, serves
from shmq.errors import PermissionDenied, ProtocolError, UsageError
from shmq.protocol.body import SubscriptionData, decode_body, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import oneway


class GroupView(msgspec.Struct):
    """One group; without members it has no model."""

    name: str
    model: str = ""
    table: dict[str, SubscriptionData] = {}


class GroupViews(msgspec.Struct):
    """Body of the answer to WATCH_GROUPS, and of GROUP_CHANGED."""

    groups: list[GroupView] = []


class Relays(Part):
    """Serves other bridges."""

    def __init__(self, registry: GroupRegistry, settings: BrokerSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._watchers: set[int] = set()

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Forget a bridge that is gone."""
        self._watchers.discard(connection.connection_id)
        return ()

    def changes(self) -> list[Effect]:
        """Tell the other bridges what has changed since the last call."""
        touched = sorted(self._registry.touched)
        self._registry.touched.clear()
        if not self._watchers:
            return []
        effects: list[Effect] = []
        for name in touched:
            body = encode_body(GroupViews([_view(name, self._registry.consumer_group(name))]))
            notice = oneway(Request.GROUP_CHANGED, {"consumerGroup": name}, body=body)
            effects += [Notify(connection_id, notice) for connection_id in sorted(self._watchers)]
        return effects

    def settings_changed(self) -> list[Effect]:
        """Tell the other bridges what the settings are now."""
        notice = oneway(Request.SETTINGS_CHANGED, tunables_of(self._settings))
        return [Notify(connection_id, notice) for connection_id in sorted(self._watchers)]

    @serves(Request.RELAY)
    def _relay(self, call: Call) -> Answer:
        self._check_owner(call.connection)
        connection = call.connection
        connection.remote = _address(text_of(call.ext, "remote"))
        connection.local = _address(text_of(call.ext, "local"))
        connection.peer = None
        connection.is_of_bridge = True
        return Answer()

    @serves(Request.WATCH_GROUPS)
    def _watch(self, call: Call) -> Answer:
        self._check_owner(call.connection)
        call.connection.is_of_bridge = True
        self._watchers.add(call.connection.connection_id)
        groups = [_view(group.name, group) for group in self._registry.consumer_groups()]
        return Answer(ext=tunables_of(self._settings), body=encode_body(GroupViews(groups)))

    def _check_owner(self, connection: Connection) -> None:
        if connection.peer is None or connection.peer.uid != self._settings.instance.get("uid", -1):
            raise PermissionDenied("only the broker's own processes may ask for this")


class RelayedGroups:
    """What the groups subscribe to, as the primary bridge last said."""

    hears_heartbeats = False

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self.version = 0

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        return self._groups.get(name)

    def replace(self, body: bytes) -> None:
        """Take the answer to WATCH_GROUPS; raises ProtocolError."""
        self._groups.clear()
        self.update(body)

    def update(self, body: bytes) -> None:
        """Take a GROUP_CHANGED; raises ProtocolError."""
        self.version += 1
        for view in decode_body(body, GroupViews).groups:
            if view.model:
                self._groups[view.name] = ConsumerGroup(view.name, view.model, "", table=view.table)
            else:
                self._groups.pop(view.name, None)


def _view(name: str, group: ConsumerGroup | None) -> GroupView:
    return GroupView(name) if group is None else GroupView(name, group.model, group.table)


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except UsageError as error:
        raise ProtocolError(f"{text[:64]!a} is no address") from error
