"""Feeds the service manager's watchdog, only while every process of the broker really works.

The signs of life come from `shmq.metrics.vital_signs`; when they stop, the service manager restarts the broker.

    every process gave a sign within the manager's patience    fed
    one did not: dead, stopped, stuck                          not fed, and the log and `systemctl status` say which
"""

import time
from collections.abc import Sequence

from shmq.daemon.event_log import EventLog
from shmq.daemon.service_manager import ServiceManager
from shmq.errors import SegmentError
from shmq.metrics.vital_signs import silent_roles
from shmq.shm.counter_reader import open_counters
from shmq.shm.instance import Instance

_LIMIT_SECONDS_MIN = 5.0  # a tick is a second, and a busy host makes it late


class Feeder:
    """Looks and feeds, in turns."""

    def __init__(self, manager: ServiceManager, log: EventLog) -> None:
        self._manager = manager
        self._log = log
        self._due = 0.0
        self._silent: list[str] = []

    def turn(self, now: float, instance: Instance, roles: Sequence[str]) -> float:
        """Feed if it is due and deserved; return when to come again, on the monotonic clock."""
        if now < self._due:
            return self._due
        self._due = now + self._manager.feed_seconds
        silent = self._look(instance, roles)
        if not silent:
            self._manager.feed()
        if silent != self._silent:
            self._silent = silent
            self._manager.status(f"no sign of life from {', '.join(silent)}" if silent else "serving")
            self._log("watchdog.starved" if silent else "watchdog.fed_again", roles=", ".join(silent) or "all")
        return self._due

    def _look(self, instance: Instance, roles: Sequence[str]) -> list[str]:
        try:
            reader = open_counters(instance)
        except SegmentError as error:
            self._log("watchdog.blind", reason=str(error))
            return list(roles)
        try:
            wanted = {role: instance.processes.get(role) for role in roles}
            limit_ns = int(max(2 * self._manager.feed_seconds, _LIMIT_SECONDS_MIN) * 1e9)
            return silent_roles(wanted, reader.blocks(), now_ns=time.monotonic_ns(), limit_ns=limit_ns)
        finally:
            reader.close()
