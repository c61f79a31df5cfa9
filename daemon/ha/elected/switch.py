"""`shmq cluster promote` at a broker whose master is elected: the election is asked, and waited for.

promote            this broker is in sync: the leader hands over to it; there is none: it campaigns
promote --force    whichever broker leads, in sync or not: a new epoch begins here
demote             refused: promote the broker that is to lead instead
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shmq.daemon.ha.election.member import Role, Status
from shmq.daemon.ha.elector import Elector
from shmq.daemon.ha.switching import Request
from shmq.errors import RequestTimeout, UsageError
from shmq.shm.core import Store

_SWITCH_SECONDS = 15.0
_LOOK_SECONDS = 0.01


class ElectedSwitch:
    """Answers the `SwitchSocket` of one broker.

    Args:
        leader_end: as far as the leader's log was heard of.
    """

    def __init__(self, elector: Elector, store: Store, leader_end: Callable[[], int]) -> None:
        self._elector, self._store, self._leader_end = elector, store, leader_end

    def answer(self, request: Request) -> dict[str, Any]:
        """Do what is asked for.

        Raises:
            ShmqError: it cannot be, is refused, or takes too long.
        """
        if request.verb == "promote":
            return self._promote(force=request.force)
        if request.verb == "demote":
            raise UsageError(
                "the master of this name is elected", hint="on the host that is to lead: shmq cluster promote"
            )
        raise UsageError(f"{request.verb[:32]!r} is no switch", hint="shmq cluster --help")

    def _promote(self, *, force: bool) -> dict[str, Any]:
        began = time.monotonic()
        before = self._elector.status()
        if before.role is Role.LEADING:
            raise UsageError("this broker is the master already", hint="shmq cluster status")
        missing = max(0, self._leader_end() - self._store.log_end) if force else 0
        refused = self._elector.promote(is_forced=force)
        if refused:
            raise UsageError(refused, hint="shmq cluster status says who is in sync; shmq cluster promote --force")
        status = self._until_leading(began, before)
        return {
            "epoch": status.epoch,
            "log_end": self._store.log_end,
            "missing_bytes": missing,
            "master_answered": not force,
            "forced": force and bool(before.leader),
            "seconds": round(time.monotonic() - began, 3),
            "old_master": before.leader_address.partition("/")[0],
        }

    def _until_leading(self, began: float, before: Status) -> Status:
        while time.monotonic() < began + _SWITCH_SECONDS:
            status = self._elector.status()
            if status.role is Role.LEADING and status.epoch > before.epoch:
                return status
            time.sleep(_LOOK_SECONDS)
        raise RequestTimeout(
            f"this broker does not lead after {_SWITCH_SECONDS:g} s: {status.reason or status.role.name.lower()}",
            hint="see what shmq cluster status says here, and on the leader's host",
        )
