"""A broker's metrics as text: `shmq health --format prometheus` and the exporter call this.

When the broker has replaced its segments, the new ones are opened at the next reading.
"""

from __future__ import annotations

from shmq.errors import BrokerNotRunning
from shmq.metrics.exposition import Samples, render
from shmq.metrics.gather import Gatherer
from shmq.shm.core import Store
from shmq.shm.instance import Instance, read_instance
from shmq.shm.place import Place
from shmq.shm.segment import open_store


class MetricsReport:
    """The metrics of one broker, again and again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._instance: Instance | None = None
        self._store: Store | None = None
        self._gatherer: Gatherer | None = None

    def samples(self) -> Samples:
        """Return every sample as of now.

        Raises:
            BrokerNotRunning: there never was a broker here, or it was stopped.
            ShmqError: its segments cannot be read.
        """
        return self._ready().gather()

    def text(self) -> str:
        """Return them as OpenMetrics text; raises as `samples` does."""
        gatherer = self._ready()
        samples = gatherer.gather()
        base = {"cluster": gatherer.cluster, "node_type": "broker", "node_id": self._place.broker_name}
        return render(samples, base)

    def close(self) -> None:
        """Let go of the segments."""
        if self._gatherer is not None:
            self._gatherer.close()
        if self._store is not None:
            self._store.close()
        self._gatherer = self._store = None

    def _ready(self) -> Gatherer:
        instance = read_instance(self._place.instance_path)
        if instance is None:
            self.close()
            raise BrokerNotRunning(
                f"there is no broker at {self._place.runtime_dir}", hint="start it: shmq serve, or name another with -u"
            )
        if self._gatherer is None or instance != self._instance:
            # Processes come and go in it too; opening again costs half a millisecond.
            self.close()
            self._store = open_store(instance, writable=False)
            self._gatherer = Gatherer(self._store, instance, self._place.links_path)
            self._instance = instance
        return self._gatherer
