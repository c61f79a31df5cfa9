"""The keeper's flush thread: the bell, the beat, and fdatasync by policy.

The core syncs through its own mappings, so that no write-back error is missed.

    async   every flush_interval_ms, if anything was appended
            and when somebody rings, once a topic of the broker is flushed synchronously
    sync    whenever the log end is ahead of the durable end: all appends that came meanwhile ride on one sync

Rule: the first failure is final. The core has set the store read-only by then; there is no second try, because the
kernel would report success for pages it has given up.
"""

import threading
import time
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.daemon.options import Options
from shmq.metrics.family import DISK_BOUNDS
from shmq.shm.core import CoreError, KeeperStore, Store
from shmq.shm.counters import Counters, LooseCounters

_SLEEP_SECONDS_MAX = 0.2


class Flusher:
    """Owns the thread that flushes.

    Args:
        on_bell: called when a writer rang; from the thread.
        on_flushed: called when the durable end may have risen; from the thread that flushed.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        options: Options,
        *,
        on_bell: Callable[[], None],
        on_flushed: Callable[[], None],
        log: EventLog,
        counters: Counters | None = None,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._sync = options.flush_sync
        self._interval_seconds = options.flush_interval_ms / 1000
        self._on_bell = on_bell
        self._on_flushed = on_flushed
        self._log = log
        counters = counters or LooseCounters()
        self._latency = counters.histogram("shmq_flush_latency_seconds", DISK_BOUNDS)
        self._failures = counters.counter("shmq_flush_failures")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self.failed = False
        self.flushed_ms = 0  # wall clock when the last complete flush began

    def start(self) -> None:
        """Begin to flush."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; it does not end by itself."""
        return self._thread.is_alive()

    def stop(self, timeout: float) -> bool:
        """End the thread; False when it hangs in a sync for longer than `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def flush(self) -> bool:
        """Flush now; False when it failed, now or earlier."""
        if self.failed:
            return False
        began_ms, began_ns = int(time.time() * 1000), time.monotonic_ns()
        try:
            self._keeper_store.flush()
        except CoreError as error:
            self.failed = True
            self._failures.add()
            self._log(
                "flush.failed", reason=str(error.args[1]), consequence="the store is read-only until it is restarted"
            )
            return False
        self._latency.observe(time.monotonic_ns() - began_ns)
        self.flushed_ms = began_ms
        self._on_flushed()
        return True

    def _run(self) -> None:
        due = time.monotonic() + self._interval_seconds
        while not self._stopping.is_set():
            rung = self._keeper_store.keeper_sleep(_SLEEP_SECONDS_MAX if self._sync else self._pause(due))
            self._keeper_store.keeper_beat()
            if rung:
                self._on_bell()
            now = time.monotonic()
            if self._sync or now >= due or (rung and self._store.has_sync_topics):
                if not self.failed and self._store.log_end > self._store.durable_end:
                    self.flush()
                due = now + self._interval_seconds

    def _pause(self, due: float) -> float:
        return max(0.001, min(_SLEEP_SECONDS_MAX, due - time.monotonic()))
