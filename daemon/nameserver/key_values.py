"""Keys and values in namespaces, which administrators keep at the name server.

The table is text in a file after each change; the keeper of that file is handed in.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}              RocketMQ's kvConfig.json

Invariants:
 1. A change is kept before it is visible: when keeping fails, the table is what it was.
 2. An empty namespace does not exist.
"""

from collections.abc import Mapping
from typing import Protocol

from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import UsageError

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_NAME_CHARACTERS_MAX = 255

Table = dict[str, dict[str, str]]


class Keeper(Protocol):
    """Keeps the table across restarts."""

    def load(self) -> Table:
        """Return what was kept last; empty when nothing was."""

    def save(self, table: Mapping[str, Mapping[str, str]]) -> None:
        """Keep the table; a ShmqError when that fails."""


class KeyValues:
    """The table and its keeper."""

    def __init__(self, keeper: Keeper, settings: NameServerSettings) -> None:
        self._keeper = keeper
        self._settings = settings
        self._table = {space: dict(values) for space, values in keeper.load().items() if values}

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str]:
        """Return all keys and values of a namespace; empty when there is none."""
        return self._table.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and keep it.

        Raises:
            UsageError: a name or value is too long, or there are too many.
            ShmqError: it could not be kept.
        """
        settings = self._settings
        for name in (namespace, key):
            if not 0 < len(name) <= _NAME_CHARACTERS_MAX:
                raise UsageError(f"a name of {len(name)} characters; 1 to {_NAME_CHARACTERS_MAX} are allowed")
        if len(value.encode()) > settings.kv_value_bytes_max:
            raise UsageError(f"a value of {len(value)} characters; {settings.kv_value_bytes_max} bytes are allowed")
        changed = self._copy()
        changed.setdefault(namespace, {})[key] = value
        entries = sum(len(values) for values in changed.values())
        size_bytes = sum(len(k) + len(v.encode()) for values in changed.values() for k, v in values.items())
        if entries > settings.kv_entries_max or size_bytes > settings.kv_bytes_max:
            raise UsageError(
                f"{entries} keys with {size_bytes} bytes; {settings.kv_entries_max} keys "
                f"and {settings.kv_bytes_max} bytes are allowed"
            )
        self._keep(changed)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value if there is one; a ShmqError when that cannot be kept."""
        if self.get(namespace, key) is None:
            return
        changed = self._copy()
        del changed[namespace][key]
        if not changed[namespace]:
            del changed[namespace]
        self._keep(changed)

    def _copy(self) -> Table:
        return {space: dict(values) for space, values in self._table.items()}

    def _keep(self, table: Table) -> None:
        self._keeper.save(table)
        self._table = table


class Forgetful:
    """A keeper of nothing, for a name server without a file."""

    def load(self) -> Table:
        return {}

    def save(self, table: Mapping[str, Mapping[str, str]]) -> None:
        pass
