"""Binds a client id to the account that used it first, so no other account gets what is meant for its client.

Replies and questions about transactions go to the connection that says a client id in its heartbeat, and every reader
of a request knows the id of its sender. So an id belongs to an account as long as that account uses it, and some time
longer, in which its client may come back.

    said by                                                 is free           is another account's
    an account                                              its own now       refused
    a client with every right (no accounts, trusted host)   stays free        allowed

Invariants: (1) an account keeps at most `IDS_MAX` ids, those it used last: none can push out another's.
"""

from collections import OrderedDict

from shmq.daemon.logic.access.rights import Rights
from shmq.errors import PermissionDenied

IDS_MAX = 4096  # of one account
_KEPT_MS = 600_000  # since its last heartbeat; a client that lost its connection is back long before


class ClientIds:
    """The ids that accounts use."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._used_ms: dict[str, OrderedDict[str, int]] = {}  # of each account, the last used at the end

    def check(self, client_id: str, rights: Rights, now_ms: int) -> None:
        """Let a sender speak for a client.

        Raises:
            PermissionDenied: another account uses this id.
        """
        owner = self._owners.get(client_id)
        if owner is None or rights.is_everything or owner == rights.name:
            return
        if self._used_ms[owner][client_id] + _KEPT_MS < now_ms:
            self._forget(owner, client_id)
            return
        error = PermissionDenied(
            f"the client id {client_id[:64]!a} belongs to another account than accessKey={rights.name}",
            hint="give each client an instance name of its own",
        )
        error.code = rights.code
        raise error

    def use(self, client_id: str, rights: Rights, now_ms: int) -> None:
        """Note that an account uses an id now; raises as `check`."""
        self.check(client_id, rights, now_ms)
        if rights.is_everything:
            return
        self._owners[client_id] = rights.name
        used_ms = self._used_ms.setdefault(rights.name, OrderedDict())
        used_ms[client_id] = now_ms
        used_ms.move_to_end(client_id)
        if len(used_ms) > IDS_MAX:
            self._forget(rights.name, next(iter(used_ms)))

    def _forget(self, owner: str, client_id: str) -> None:
        del self._owners[client_id]
        del self._used_ms[owner][client_id]
        if not self._used_ms[owner]:
            del self._used_ms[owner]
