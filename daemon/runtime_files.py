"""Files of a running broker in its runtime directory, by which other programs find it.

    instance.json   where the segments are; written when a process of the broker starts or ends
    tcp.json        where the bridge listens, metrics.json the exporter, ha.json the replication; each written by that
                    process, before it says that it is ready

Each is looked for every second, and written again as it was where it is gone: cleaners of /tmp remove what is old. What
cannot be written is said once for each reason, and tried again.

Rules: (1) what another program put in its place is left until the next start of a process: it may be looked at there;
(2) of a process that has ended nothing is written again.
"""

import os
from pathlib import Path
from typing import Final

from shmq.daemon.event_log import EventLog
from shmq.errors import StoreError
from shmq.plain_file import read_plain
from shmq.shm.access import access_rights
from shmq.shm.addresses import FILE_BYTES_MAX
from shmq.shm.instance import Instance, write_instance
from shmq.shm.place import Place
from shmq.shm.replacing import replace_text

LOOK_SECONDS: Final = 1.0


class RuntimeFiles:
    """The files, as the supervisor keeps them."""

    def __init__(self, place: Place, log: EventLog) -> None:
        self._instance_path = place.instance_path
        self._paths = {"bridge": place.addresses_path, "exporter": place.metrics_path, "replication": place.ha_path}
        self._texts: dict[str, str] = {}  # by the role that wrote them
        self._log = log
        self._due = 0.0
        self._said: dict[Path, str] = {}

    def write(self, instance: Instance) -> StoreError | None:
        """Write instance.json, whatever has become of it; return why it cannot be written."""
        access = access_rights()
        try:
            write_instance(self._instance_path, instance, mode=access.read_mode, gid=access.gid)
        except StoreError as error:
            self._fails(self._instance_path, "instance.not_written", error)
            return error
        self._said.pop(self._instance_path, None)
        return None

    def learn(self, role: str) -> None:
        """Keep what a process that is ready has written."""
        if role in self._paths:
            try:
                self._texts[role] = read_plain(self._paths[role], FILE_BYTES_MAX).decode()
            except (OSError, ValueError):
                self.forget(role)  # it listens nowhere, or another program has the name

    def forget(self, role: str) -> None:
        """A process has ended."""
        self._texts.pop(role, None)

    def look(self, now: float, instance: Instance) -> float:
        """Write again what is gone; return when to look again, on the monotonic clock."""
        if now >= self._due:
            self._due = now + LOOK_SECONDS
            if not os.path.lexists(self._instance_path) and self.write(instance) is None:
                self._log("instance.written_again", path=str(self._instance_path))
            for role, text in self._texts.items():
                if not os.path.lexists(self._paths[role]):
                    self._write_again(self._paths[role], text)
        return self._due

    def _write_again(self, path: Path, text: str) -> None:
        access = access_rights()
        try:
            replace_text(path, text, mode=access.read_mode, gid=access.gid)
        except StoreError as error:
            self._fails(path, "addresses.not_written", error)
        else:
            self._said.pop(path, None)
            self._log("addresses.written_again", path=str(path))

    def _fails(self, path: Path, event: str, error: StoreError) -> None:
        if self._said.get(path) != str(error):
            self._said[path] = str(error)
            self._log(event, reason=str(error), hint=error.hint)
