"""Writes links.json, from which health and its like learn what this process knows of the other hosts.

Rule: a runtime directory that takes no file costs a line in the log, and never the replication.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.replicas import Replicas
from shmq.daemon.ha.slave.master_state import MasterState
from shmq.errors import StoreError
from shmq.shm.access import Access
from shmq.shm.core import READ_ONLY_FENCED, READ_ONLY_FOLLOWER, Store
from shmq.shm.links import FENCED, FOLLOWS, LEADS, ElectionState, Links, write_links

_STANDINGS = {READ_ONLY_FOLLOWER: FOLLOWS, READ_ONLY_FENCED: FENCED}


class Telling:
    """The links.json of one replication process.

    Args:
        path: of links.json.
        epoch: that this broker knows as the newest.
        replicas: where slaves may connect.
        master: of a slave.
        election: where the master is elected.
    """

    def __init__(
        self,
        path: Path,
        access: Access,
        role: Callable[[], str],
        epoch: Callable[[], int],
        replicas: Replicas | None,
        master: Callable[[], MasterState | None],
        log: EventLog,
        *,
        election: Callable[[], ElectionState | None] | None = None,
    ) -> None:
        self._election = election
        self._path = path
        self._access = access
        self._role = role
        self._epoch = epoch
        self._replicas = replicas
        self._master = master
        self._log = log
        self._is_written = True
        self._standing: tuple[str, int] | None = None
        self._standing_since_ms = 0

    def tell(self, store: Store, now_ms: int) -> None:
        """Write down how things are now."""
        replicas, master = self._replicas, self._master()
        if replicas is not None:
            replicas.grown(store.log_end, now_ms)
        standing, epoch = _STANDINGS.get(store.standing, LEADS), self._epoch()
        if self._standing != (standing, epoch):
            self._standing, self._standing_since_ms = (standing, epoch), now_ms
        links = Links(
            now_ms,
            self._role(),
            replicas.rows(now_ms) if replicas is not None else (),
            replicas.gone_rows() if replicas is not None else (),
            replicas.refused_rows() if replicas is not None else (),
            master.row(now_ms) if master is not None else None,
            epoch,
            standing,
            store.leader,
            election() if (election := self._election) is not None else None,
            self._standing_since_ms,
        )
        try:
            write_links(self._path, links, mode=self._access.read_mode, gid=self._access.gid)
            self._is_written = True
        except StoreError as error:
            if self._is_written:
                self._log("ha.not_told", path=str(self._path), reason=str(error))
            self._is_written = False
