"""An elected broker whose checkpoint is lost, damaged or old shows nothing that was not confirmed, and goes on.

Behind what it noted as confirmed, its positions may have become those of other messages on the host that leads now.
"""

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmq.options.broker import Options
from shmq.shm.core import ReplicaStore
from shmq.store.checkpoint import CHECKPOINT_BYTES, read_checkpoint
from shmq.store.lineage.cutting import wish_cut
from tests.tables.rows import every_row

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]

SYNC = {"role": "sync-master", "ha_listen": "127.0.0.1:10912", "flush_interval_ms": 20}
ELECTED = {**SYNC, "etcd": "http://127.0.0.1:2379", "group_role": "sync-master"}
FOLLOWS = {"role": "slave", "master": "127.0.0.1:1", "master_ha": "127.0.0.1:2"}  # as a leader was met
FIELDS = struct.Struct(">qqqqq")  # RocketMQ's: three times, flushed, confirmed
FAR = 1 << 40


def write(path: Path, content: bytes, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def raise_open_fields(path: Path) -> None:
    """As a stock broker that took the directory over would have moved them on."""
    times = FIELDS.unpack_from(path.read_bytes())[:3]
    write(path, FIELDS.pack(*times, FAR, FAR))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "zeroed": lambda path: write(path, bytes(CHECKPOINT_BYTES)),
    "short": lambda path: os.truncate(path, 100),
    "open fields zeroed": lambda path: write(path, bytes(FIELDS.size)),
    "open fields raised": raise_open_fields,
    "checksum damaged": lambda path: write(path, b"\xff" * 60, 256),
    "all damaged": lambda path: write(path, random.Random(7).randbytes(CHECKPOINT_BYTES)),
}
UNKNOWN = ("lost", "empty", "zeroed", "short", "checksum damaged", "all damaged")  # how far it was confirmed


class Life:
    """A broker of a group: what is confirmed, and behind it what is on its disk alone."""

    def __init__(self, start: StartKeeper, store: str, eventually: Eventually, end: str = "end") -> None:
        self._start, self._store, self._eventually = start, store.replace(" ", "-"), eventually
        self._end_of_broker = end
        self.running = start(**SYNC, store=self._store)
        self.path: Path = self.running.attached.files.layout.checkpoint
        self.running.send("orders", b"confirmed")
        self.older = self._confirmed()
        self.old_content = self.path.read_bytes()
        self.running.send("orders", b"confirmed too")
        self.confirmed = self._confirmed()
        self.running.send("orders", b"on this disk only")
        self.end = self.running.store.log_end

    def _confirmed(self) -> int:
        store, layout = self.running.store, self.running.attached.files.layout
        self._eventually(lambda: ReplicaStore(store).confirm(store.log_end, 0, 1.0) == store.log_end)
        self._eventually(lambda: read_checkpoint(layout).confirmed == store.log_end)
        return int(store.log_end)

    def come_again(self, how: str, **values: Any) -> Any:
        """Its end, in order or by kills, what happens to the file then, and its return."""
        getattr(self.running, self._end_of_broker)()
        if how == "old":
            self.path.write_bytes(self.old_content)
        else:
            DAMAGE[how](self.path)
        self.running = self._start(**{**ELECTED, **values}, store=self._store)
        return self.running.store

    def known(self, how: str) -> int:
        """Up to where it still knows it as confirmed."""
        return 0 if how in UNKNOWN else self.older if how == "old" else self.confirmed


def test_it_returns_with_what_it_knows_and_a_promotion_shows_all(
    start_keeper: StartKeeper, options: Options, eventually: Eventually
) -> None:
    # What an orderly stop changes is what the file says last; after that all damages are alike.
    @every_row(("how", "end"), [*((how, "end") for how in ("old", *DAMAGE)), ("old", "stop"), ("lost", "stop")])
    def each(how: str, end: str) -> None:
        life = Life(start_keeper, f"{options.store}-{how}-{end}", eventually, end)
        store = life.come_again(how)
        assert (store.log_end, store.durable_end) == (life.end, life.end)
        assert (store.confirmed_end, store.visible_end) == (life.known(how),) * 2
        replica = ReplicaStore(store)
        replica.lead(1)
        eventually(lambda: replica.confirm(store.log_end, 0, 1.0) == store.log_end)
        assert store.visible_end == life.end
        assert [store.message_at(at).body for at in (0, life.older, life.confirmed)] == [
            b"confirmed",
            b"confirmed too",
            b"on this disk only",
        ]
        eventually(lambda: read_checkpoint(life.running.attached.files.layout).confirmed == life.end)

    each()


def test_a_log_that_is_cut_counts_nothing_behind_the_cut_as_confirmed(
    start_keeper: StartKeeper, options: Options, eventually: Eventually
) -> None:
    @every_row("how", ["old", *DAMAGE])
    def each(how: str) -> None:
        life = Life(start_keeper, f"{options.store}-cut-{how}", eventually)
        wish_cut(life.running.attached.files.layout, life.confirmed, 1, end=life.end)
        store = life.come_again(how, **FOLLOWS)
        assert store.log_end == life.confirmed
        assert store.confirmed_end == store.visible_end == 0  # the leader has not said more yet
        layout = life.running.attached.files.layout
        eventually(lambda: read_checkpoint(layout).flushed == life.confirmed)  # by the keeper's thread
        assert read_checkpoint(layout).confirmed == 0

    each()
