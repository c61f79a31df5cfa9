"""The answer to STATUS, as JSON.

    {"broker": {name, version, abi, generation, uptimeMs, autoCreate, defaultQueues, waitDurable},
     "connections": [{clientId, version, pid, uid, role, clientSlot, sinceMs, consumerGroups, producerGroups}],
     "consumerGroups": {name: {model, members: {clientId: {transport, language, version, seenMs, subscription}},
                               differsSinceMs, conflicts}},
     "producerGroups": {name: [clientId]}, "topics": n, "groups": n,
     "settings": {option: value in force}, "origins": {option: where its value comes from, unless it is a default}}

Times are ages in milliseconds.
"""

from typing import Any

import msgspec

from shmq.daemon.broker.administration.config import TUNABLES
from shmq.daemon.broker.groups.consumer_group import ConsumerGroup
from shmq.daemon.broker.groups.registry import Presence
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Names
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, serves
from shmq.protocol.codes import Request

CHANGED = "changed since the start, until its end"
_CHANGEABLE = frozenset(tunable.field for tunable in TUNABLES.values())


class StatusRequests(Part):
    """Serves STATUS."""

    def __init__(self, tables: Names, presence: Presence, settings: BrokerSettings) -> None:
        self._tables = tables
        self._registry, self._connections, self._since_ms = presence
        self._settings = settings

    @serves(Request.STATUS)
    def _status(self, call: Call) -> Answer:
        settings = self._settings
        options, origins = _in_force(settings)
        body = {
            "broker": {
                "name": settings.broker_name,
                "version": settings.version,
                "abi": settings.abi,
                "generation": f"{settings.generation:016x}",
                "uptimeMs": call.now_ms - self._since_ms,
                "autoCreate": settings.auto_create,
                "defaultQueues": settings.default_queues,
                "waitDurable": settings.wait_durable,
            },
            "connections": [self._connection(connection, call.now_ms) for connection in self._connections.values()],
            "consumerGroups": {group.name: _group(group, call.now_ms) for group in self._registry.consumer_groups()},
            "producerGroups": self._registry.producer_groups(),
            "topics": len(self._tables.topic_names()),
            "groups": len(self._tables.groups()),
            "settings": options,
            "origins": origins,
        }
        return Answer(body=msgspec.json.encode(body))

    def _connection(self, connection: Connection, now_ms: int) -> dict[str, Any]:
        consumer_groups, producer_groups = self._registry.memberships(connection.connection_id)
        return {
            "clientId": connection.client_id,
            "version": connection.version,
            "pid": connection.peer.pid if connection.peer else 0,
            "uid": connection.peer.uid if connection.peer else -1,
            "role": connection.role,
            "clientSlot": connection.client_slot,
            "sinceMs": now_ms - connection.since_ms,
            "consumerGroups": consumer_groups,
            "producerGroups": producer_groups,
        }


def _in_force(settings: BrokerSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of the start, but those that were changed since as they are now, and where each is from."""
    options, origins = dict(settings.options), dict(settings.origins)
    for name in _CHANGEABLE & options.keys():
        value = getattr(settings, name)
        if value != options[name]:
            options[name], origins[name] = value, CHANGED
    return options, origins


def _group(group: ConsumerGroup, now_ms: int) -> dict[str, Any]:
    since_ms = group.agreement.differs_since_ms
    return {
        "model": group.model,
        "members": {
            client_id: {
                "transport": "shm" if member.origin.is_local else "tcp",
                "language": member.origin.language.name,
                "version": member.origin.version,
                "seenMs": now_ms - member.seen_ms,
                "subscription": {topic: str(interest) for topic, interest in member.subscription.items()},
            }
            for client_id, member in sorted(group.members.items())
        },
        "differsSinceMs": None if since_ms is None else now_ms - since_ms,
        "conflicts": group.conflicts,
    }
