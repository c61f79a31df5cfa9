"""A look at the segments of a broker that runs, from outside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shmq.shm.core import Store
from shmq.shm.instance import read_instance
from shmq.shm.segment import open_store
from shmq.testing import Broker


@contextlib.contextmanager
def looking(broker: Broker) -> Iterator[Store]:
    """Yield the segments of a broker as they are now; nothing of them changes by it.

    Raises:
        SegmentError: they are made anew just now.
    """
    instance = read_instance(broker.place.instance_path)
    assert instance is not None, "the broker does not run"
    store = open_store(instance, writable=False, observing=True)
    try:
        yield store
    finally:
        store.close()
