"""The keeper's flush thread: the bell, the beat, and fdatasync by policy.

The thread lives in the core (`core/log/flusher.c`), without the GIL: flushes follow each other for as long as a sender
waits, whatever the keeper does meanwhile. It comes back for errands and to report what it counted. The core syncs
through its own mappings, so that no write-back error is missed.

    async   every flush_interval_ms, if anything was appended
            and at once for waiters: a topic of the broker may be flushed synchronously
    sync    whenever the log end is ahead of the durable end: all appends that came meanwhile ride on one sync

Rule: the first failure is final. The core has set the store read-only by then; there is no second try, because the
kernel would report success for pages it has given up.
"""

import threading
import time
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.errors import SendTimeout
from shmq.metrics.family import DISK_BOUNDS
from shmq.options.broker import Options
from shmq.shm.core import CoreError, KeeperStore
from shmq.shm.counters import Counters, LooseCounters

_STRETCH_SECONDS = 0.2


class Flusher:
    """Owns the thread that flushes.

    Args:
        on_bell: called when a writer or reader rang for anything but a flush; from the thread.
    """

    def __init__(
        self,
        keeper_store: KeeperStore,
        options: Options,
        *,
        on_bell: Callable[[], None],
        log: EventLog,
        counters: Counters | None = None,
    ) -> None:
        self._keeper_store = keeper_store
        self._interval_seconds = None if options.flush_sync else options.flush_interval_ms / 1000
        self._on_bell = on_bell
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

    def ask_to_stop(self) -> None:
        """Let the thread end when it looks next."""
        self._stopping.set()

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
            self._failed(error)
            return False
        self._latency.observe(time.monotonic_ns() - began_ns)
        self.flushed_ms = began_ms
        return True

    def _failed(self, error: CoreError) -> None:
        if self.failed or isinstance(error, SendTimeout):  # another process is syncing for as long: the disk is slow
            return
        self.failed = True
        self._failures.add()
        self._log("flush.failed", reason=str(error.args[1]), consequence="the store is read-only until it is restarted")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                rung, began_ms, counts = self._keeper_store.keep_flushed(
                    _STRETCH_SECONDS, interval=self._interval_seconds, bounds=DISK_BOUNDS
                )
            except CoreError as error:
                self._failed(error)
                continue
            if began_ms:
                self.flushed_ms = began_ms
                self._latency.merge(counts)
            if rung:
                self._on_bell()
