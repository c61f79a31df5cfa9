"""instance.json of a running broker: by it new programs find the segments.

    written         when a process of the broker starts or ends
    looked for      every second, and written again where it is gone: cleaners of /tmp remove what is old
    not writable    said once for each reason, and tried again

Rule: what another program put in its place is left until the next start of a process: it may be looked at there.
"""

import os

from shmq.daemon.event_log import EventLog
from shmq.errors import StoreError
from shmq.shm.access import access_rights
from shmq.shm.instance import Instance, write_instance
from shmq.shm.place import Place

LOOK_SECONDS = 1.0


class InstanceRecord:
    """The file, as its supervisor keeps it."""

    def __init__(self, place: Place, log: EventLog) -> None:
        self._path = place.instance_path
        self._log = log
        self._due = 0.0
        self._said = ""

    def write(self, instance: Instance) -> StoreError | None:
        """Write it, whatever has become of it; return why it cannot be written."""
        access = access_rights()
        try:
            write_instance(self._path, instance, mode=access.read_mode, gid=access.gid)
        except StoreError as error:
            if self._said != str(error):
                self._said = str(error)
                self._log("instance.not_written", reason=str(error), hint=error.hint)
            return error
        self._said = ""
        return None

    def look(self, now: float, instance: Instance) -> float:
        """Write it again where it is gone; return when to look again, on the monotonic clock."""
        if now >= self._due:
            self._due = now + LOOK_SECONDS
            if not os.path.lexists(self._path) and self.write(instance) is None:
                self._log("instance.written_again", path=str(self._path))
        return self._due
