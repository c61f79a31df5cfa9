"""A small store of a real broker with every kind of message, kept in memory, so that its copies can be damaged.

Besides the store it keeps an older one, from the middle of the same broker's life: what a disk shows that lost a write.

Its index has small files; they are filled by the broker's own index keeper.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shmq.daemon.keeper.index import IndexKeeper
from shmq.shm.access import Access
from shmq.shm.core import KeeperStore
from shmq.store.durable import DurableMark
from shmq.store.index.files import IndexShape
from shmq.store.layout import StoreLayout
from shmq.store.verify import LogFiles, RecordWalk, Verification
from shmq.testing import Broker
from tests.crash.disk.recovered import RecoveredStore
from tests.deadline import eventually
from tests.tools.store.conftest import copy_store, end_in_order

FILE_BYTES = 64 << 10
SHAPE = IndexShape(slots=48, entries=128)
PAGE_BYTES = 4096
MESSAGES = 120  # of each half of its life

_MARK_RANGES = ((0, 72), (4096, 4168))
_CHECKPOINT_RANGES = ((0, 40), (256, 308))


@dataclass(frozen=True)
class Image:
    """The files of one store: content without the zeros at the end, and size."""

    files: dict[str, tuple[bytes, int]]

    @classmethod
    def of(cls, root: Path) -> Image:
        """Take a store."""
        found = {}
        for path in sorted(root.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                found[str(path.relative_to(root))] = content.rstrip(b"\0"), len(content)
        return cls(found)

    def lay_out(self, root: Path) -> None:
        """Write it into a new directory."""
        shutil.rmtree(root, ignore_errors=True)
        made: set[Path] = set()
        for name, (content, size) in self.files.items():
            path = root / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            with path.open("wb", buffering=0) as file:
                file.write(content)
                file.truncate(size)

    def changed(self, name: str, at: int, data: bytes) -> Image:
        """Return it with other bytes at one place."""
        content, size = self.files[name]
        whole = content.ljust(at + len(data), b"\0")
        return Image({**self.files, name: (whole[:at] + data + whole[at + len(data) :], max(size, at + len(data)))})

    def live(self) -> Iterator[tuple[str, int]]:
        """Every byte that is read: file and place."""
        for name, (content, _) in self.files.items():
            for begin, end in _live_ranges(name, len(content)):
                for at in range(begin, end):
                    yield name, at

    def pages(self) -> Iterator[tuple[str, int]]:
        """Every page with live bytes."""
        known: set[tuple[str, int]] = set()
        for name, at in self.live():
            place = name, at - at % PAGE_BYTES
            if place not in known:
                known.add(place)
                yield place

    def page(self, name: str, at: int) -> bytes:
        """The content of a page, or of what there is of it."""
        content, size = self.files.get(name, (b"", 0))
        return content[at : at + PAGE_BYTES].ljust(max(0, min(PAGE_BYTES, size - at)), b"\0")


def _live_ranges(name: str, size: int) -> tuple[tuple[int, int], ...]:
    if name == "shmq.durable":
        return _MARK_RANGES
    if name == "checkpoint":
        return _CHECKPOINT_RANGES
    return () if name in ("lock", "abort", "shmq.scrub") else ((0, size),)


@dataclass(frozen=True)
class Stores:
    """The store that is damaged, and the one it was before."""

    whole: Image
    older: Image


def make_stores(*, end: str) -> Stores:
    """Fill a store and end its broker: "stopped" in order, or "killed" when it had nothing more to write.

    What was stored in the second before a kill has no unit on the disk yet: nothing but its record remembers it.
    """
    with tempfile.TemporaryDirectory(prefix="shmq-damage-") as directory:
        images = []
        with Broker(file_bytes=FILE_BYTES, default_queues=2, flush="sync") as broker:
            for half in range(2):
                if half:
                    broker.start()
                _fill(broker, half)
                if end == "killed" and half:
                    eventually(lambda: _is_dispatched(broker.store), "the units of every record are on disk")
                    broker.kill_daemon()
                else:
                    end_in_order(broker)
                    broker.kill_daemon()
                root = copy_store(broker.store, Path(directory, str(half)))
                _index(root, Path(directory, f"indexed-{half}"))
                images.append(Image.of(root))
    return Stores(images[1], images[0])


def _is_dispatched(root: Path) -> bool:
    """Whether the mark says that log and units are on disk to the log's end."""
    mark = DurableMark(StoreLayout(root, Access(-1))).load()
    log = LogFiles(root / "commitlog")
    walked = Verification(log_begin=log.begin, log_end=log.begin)
    RecordWalk(log, walked).run()
    return mark is not None and mark.dispatched == mark.durable_end == walked.log_end


def _fill(broker: Broker, half: int) -> None:
    """Plain, tagged, keyed, delayed and timed messages, transactions, a message that was given back, offsets."""
    with broker.connect() as mq:
        for number in range(MESSAGES):
            body = b"%d of half %d " % (number, half) * (1 + number % 5)
            mq.send(
                "orders" if number % 3 else "bills", body, key=f"key-{half}-{number}", tag=("red", "blue")[number % 2]
            )
        mq.send("orders", b"after a level", delay=7200)
        mq.send("orders", b"later", delay=3600)
        for number, end in enumerate(("commit", "rollback", "")):
            transaction = mq.producer(group="buyers").transaction("orders", b"bought %d in half %d" % (number, half))
            if end:
                getattr(transaction, end)()
        with mq.pull_consumer("orders", group="readers") as consumer:
            consumer.commit(offsets={0: 5 + 10 * half, 1: 4 + 10 * half})
        with mq.pull_consumer("bills", group="payers") as consumer:
            consumer.commit(offsets={0: 2 + 2 * half})


def _index(root: Path, copied: Path) -> None:
    """Put an index with small files in the place of the broker's."""
    copy_store(root, copied)
    for name in ("index", "shmq.index.sums"):
        shutil.rmtree(root / name, ignore_errors=True)
        shutil.rmtree(copied / name, ignore_errors=True)
    for each in (root, copied):
        (each / "shmq.index").unlink(missing_ok=True)
    recovered = RecoveredStore(copied, file_bytes=FILE_BYTES)
    try:
        keeper = IndexKeeper(
            recovered.store,
            KeeperStore(recovered.store),
            recovered.files,
            warm=False,
            log=recovered.log,
            shape=SHAPE,
        )
        assert keeper.finish()
        keeper.close()
    finally:
        recovered.close()
    for name in ("index", "shmq.index.sums"):
        shutil.copytree(copied / name, root / name)
    shutil.copy(copied / "shmq.index", root / "shmq.index")
