"""The key index behind the log: complete within moments, and after any end of a keeper or of the host."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.keeper import index as keeper_index
from shmq.daemon.keeper.index import IndexKeeper
from shmq.errors import SegmentFull, StoreError
from shmq.shm.core import KeeperStore
from shmq.store.checkpoint import read_checkpoint, write_checkpoint
from shmq.store.index import files as index_module
from shmq.store.index.files import IndexFile, IndexFiles, IndexReader, IndexShape
from shmq.store.index.mark import IndexMark, read_index_mark
from shmq.store.index.sums import IndexSums

SMALL = IndexShape(slots=16, entries=32)
ALWAYS = {"begin_ms": 0, "end_ms": 1 << 62, "count": 64}
Eventually = Callable[..., Any]
StartKeeper = Callable[..., Any]


class Indexed:
    """A running store, and an index keeper of our own with small files over it; its clock is ours."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.layout = running.attached.files.layout
        self.files = IndexFiles(self.layout, SMALL)
        self.reader = IndexReader(self.files)
        self.now = 1000.0
        self.keeper: IndexKeeper | None = None

    def start(self, *, warm: bool = False) -> IndexKeeper:
        """Start as a new keeper process; the one before is gone without a word."""
        if self.keeper is not None:
            self.keeper.close()
        attached = self.running.attached
        self.keeper = IndexKeeper(
            attached.store,
            KeeperStore(attached.store),
            attached.files,
            warm=warm,
            log=self.running.events,
            shape=SMALL,
            settle_seconds=10.0,
        )
        return self.keeper

    def follow(self, seconds: float = 0.0) -> None:
        """Let that much time pass and follow to the end of the log."""
        assert self.keeper is not None
        self.now += seconds
        while self.keeper.round(self.now):
            pass

    def send(self, *keys: str, topic: str = "orders") -> int:
        return int(self.running.send(topic, b"body", keys=list(keys)).log_position)

    def find(self, key: str, topic: str = "orders") -> list[int]:
        return self.reader.find(topic, key, **ALWAYS).positions

    @property
    def index_ms(self) -> int:
        return read_checkpoint(self.layout).index_ms


@pytest.fixture
def indexed(start_keeper: StartKeeper) -> Iterator[Indexed]:
    running = start_keeper()
    running.halt()  # its own index keeper must not write to the same directory
    running.keeper._index.close()
    shutil.rmtree(running.attached.files.layout.index, ignore_errors=True)
    indexed = Indexed(running)
    yield indexed
    if indexed.keeper is not None:
        indexed.keeper.close()
    indexed.reader.close()


def settle(indexed: Indexed, eventually: Eventually) -> None:
    """Bring the log to disk and let time pass until the index says it is there too."""
    KeeperStore(indexed.running.store).flush()
    indexed.follow()
    eventually(lambda: indexed.follow(11.0) or indexed.keeper._is_settled, "it did not settle")


# ---- the whole keeper ------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_keys_moments_after_it_was_sent(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    reader = IndexReader(IndexFiles(running.attached.files.layout))
    assert not (running.root / "index").exists()  # an idle broker owns none
    position = running.send("orders", b"x", keys=["one", "two"]).log_position
    for key in ("one", "two"):
        eventually(lambda key=key: reader.find("orders", key, **ALWAYS).positions == [position])
    answer = reader.find("orders", "one", **ALWAYS)
    assert answer.last_position == position
    assert answer.last_ms == running.store.message_at(position).store_ms
    reader.close()


def test_the_index_takes_little_of_the_disk(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    running.send("orders", b"x", keys=["one"])
    (path,) = eventually(lambda: list((running.root / "index").glob("*")))
    assert path.stat().st_size == 420_000_040
    assert path.stat().st_blocks * 512 < 40 << 20


def test_a_clean_stop_leaves_an_index_that_the_next_start_goes_on_with(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    first = running.send("orders", b"x", keys=["one"]).log_position
    stored_ms = running.store.message_at(first).store_ms
    assert running.stop()
    (name,) = IndexFiles(running.attached.files.layout).names()
    assert read_checkpoint(running.attached.files.layout).index_ms == stored_ms
    running = start_keeper()
    second = running.send("orders", b"x", keys=["one"]).log_position
    reader = IndexReader(IndexFiles(running.attached.files.layout))
    eventually(lambda: reader.find("orders", "one", **ALWAYS).positions == [second, first])
    assert IndexFiles(running.attached.files.layout).names() == [name]
    assert running.events.named("index.file_dropped") == []
    reader.close()


@pytest.mark.parametrize("lost", [False, True])
def test_after_a_crash_the_index_is_built_anew_from_the_log(
    start_keeper: StartKeeper, eventually: Eventually, lost: bool
) -> None:
    running = start_keeper()
    positions = {f"k{number}": running.send("orders", b"x", keys=[f"k{number}"]).log_position for number in range(50)}
    layout = running.attached.files.layout
    eventually(lambda: running.keeper._index.position == running.store.log_end)
    running.end()
    if lost:
        shutil.rmtree(layout.index)
    running = start_keeper()
    reader = IndexReader(IndexFiles(layout))
    for key, position in positions.items():
        eventually(lambda key=key, position=position: reader.find("orders", key, **ALWAYS).positions == [position])
    assert len(running.events.named("index.file_dropped")) == (not lost)
    reader.close()


def test_a_keeper_that_was_killed_is_followed_by_one_that_goes_on_in_the_same_file(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    first = running.send("orders", b"x", keys=["one"]).log_position
    eventually(lambda: running.keeper._index.position == running.store.log_end)
    running.abandon()
    running = start_keeper()
    assert running.attached.report is None
    second = running.send("orders", b"x", keys=["one"]).log_position
    reader = IndexReader(IndexFiles(running.attached.files.layout))
    eventually(lambda: reader.find("orders", "one", **ALWAYS).positions == [second, first])
    assert running.events.named("index.file_dropped") == []
    reader.close()


# ---- files, marks and time -------------------------------------------------------------------------------


def test_a_full_file_is_followed_by_another_and_all_are_searched(indexed: Indexed) -> None:
    indexed.start()
    positions = [indexed.send(f"k{number}", "same") for number in range(40)]
    indexed.follow()
    names = indexed.files.names()
    assert len(names) == 3
    assert all(len(name) == 17 for name in names)
    assert indexed.find("same") == positions[::-1]
    assert indexed.find("k0") == positions[:1]
    for oldest_from, count in (
        (0, 3),
        (positions[2], 3),
        (positions[-1], 3),
        (positions[-1] + 1, 3),
        (0, len(positions)),
    ):
        *_, answer = indexed.reader.search("orders", "same", **{**ALWAYS, "count": count}, oldest_from=oldest_from)
        assert answer is not None
        assert answer.positions == [each for each in positions if each >= oldest_from][:count], (
            "the oldest from there on"
        )


def test_a_file_being_filled_is_not_trusted_after_a_crash_and_full_ones_are(
    indexed: Indexed, eventually: Eventually
) -> None:
    indexed.start()
    settle(indexed, eventually)
    for number in range(20):
        indexed.send(f"k{number}", "same")
    indexed.follow()
    KeeperStore(indexed.running.store).flush()
    eventually(lambda: indexed.follow(1.0) or indexed.keeper._mark.last)
    full, filled = indexed.files.names()
    assert read_index_mark(indexed.layout).last == full
    indexed.start()
    assert indexed.files.names() == [full]
    assert [event["file"] for event in indexed.running.events.named("index.file_dropped")] == [filled]
    indexed.follow()
    assert len(indexed.find("same")) == 20


def test_a_settled_index_is_trusted_after_a_crash_and_nothing_is_walked_twice(
    indexed: Indexed, eventually: Eventually
) -> None:
    indexed.start()
    position = indexed.send("one")
    for _ in range(20):
        indexed.running.send("orders", b"no key")
    settle(indexed, eventually)
    end = indexed.running.store.log_end
    assert read_index_mark(indexed.layout) == IndexMark(end, indexed.files.names()[-1])
    assert indexed.index_ms == indexed.running.store.message_at(position).store_ms
    assert indexed.start().position == end
    assert indexed.find("one") == [position]


def test_trust_is_taken_back_before_a_settled_file_is_written_to(indexed: Indexed, eventually: Eventually) -> None:
    indexed.start()
    first = indexed.send("one")
    settle(indexed, eventually)
    begin_ms = indexed.running.store.message_at(first).store_ms
    second = indexed.send("one")
    indexed.follow()
    assert read_index_mark(indexed.layout) == IndexMark(first, "")
    assert indexed.index_ms == begin_ms - 1
    indexed.start()
    assert indexed.files.names() == []
    indexed.follow()
    assert indexed.find("one") == [second, first]


def test_a_log_without_keys_moves_the_mark_and_makes_no_file(indexed: Indexed) -> None:
    indexed.start()
    for _ in range(10):
        indexed.running.send("orders", b"no key")
    KeeperStore(indexed.running.store).flush()
    indexed.follow()
    assert read_index_mark(indexed.layout).indexed == indexed.running.store.log_end
    assert indexed.files.names() == []


def test_a_mark_that_could_not_be_written_is_written_though_no_message_comes(
    indexed: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed.start()
    indexed.running.send("orders", b"no key")
    KeeperStore(indexed.running.store).flush()

    def refuse(*_: object) -> None:
        raise StoreError("no space left on the device")

    with monkeypatch.context() as context:
        context.setattr(keeper_index, "write_index_mark", refuse)
        indexed.follow()
    indexed.follow(30.0)
    mark = read_index_mark(indexed.layout)
    assert mark is not None and mark.indexed == indexed.running.store.log_end


def test_nothing_is_marked_that_the_log_could_still_lose(indexed: Indexed) -> None:
    indexed.start()
    indexed.running.send("orders", b"no key")
    before = indexed.running.store.durable_end
    indexed.follow(11.0)
    indexed.follow(11.0)
    mark = read_index_mark(indexed.layout)
    assert mark is None or mark.indexed <= before


def test_a_killed_keeper_is_followed_by_one_that_knows_what_is_not_synced(
    indexed: Indexed, eventually: Eventually
) -> None:
    indexed.start()
    positions = [indexed.send(f"k{number}", "same") for number in range(40)]
    indexed.follow()
    indexed.keeper.close()
    indexed.keeper = None
    indexed.start(warm=True)
    positions.append(indexed.send("same"))
    settle(indexed, eventually)
    assert indexed.find("same") == positions[::-1]
    indexed.start()
    assert indexed.find("same") == positions[::-1]


def test_files_of_records_that_expired_go_but_never_the_newest(indexed: Indexed) -> None:
    indexed.start()
    for number in range(40):
        indexed.send(f"k{number}", "same")
    indexed.follow()
    names = indexed.files.names()
    head = indexed.files.open(names[1]).head()
    indexed.keeper.begin_moved(head.end_position)
    assert indexed.files.names() == names[1:]
    indexed.keeper.begin_moved(1 << 40)
    assert indexed.files.names() == names[2:]


def test_a_full_disk_stops_the_index_only_and_is_said_once(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise SegmentFull("no room for the index file")

    indexed.start()
    with monkeypatch.context() as patched:
        patched.setattr(index_module, "_reserve", full)
        position = indexed.send("one")
        for _ in range(3):
            indexed.follow(2.0)
        assert indexed.find("one") == []
    assert len(indexed.running.events.named("index.stopped")) == 1
    indexed.follow(2.0)
    assert indexed.find("one") == [position]


def test_a_foreign_or_damaged_file_is_dropped_and_built_anew(indexed: Indexed, eventually: Eventually) -> None:
    indexed.start()
    position = indexed.send("one")
    settle(indexed, eventually)
    (name,) = indexed.files.names()
    path = Path(indexed.layout.index / name)
    content = path.read_bytes()
    path.write_bytes(content[:36] + b"\x7f\xff\xff\xff" + content[40:])
    (indexed.layout.index / "20200101000000000").write_bytes(b"short")
    indexed.start()
    assert indexed.files.names() == []
    indexed.follow()
    assert indexed.find("one") == [position]


def test_an_index_of_a_stock_broker_is_taken_over(indexed: Indexed, eventually: Eventually) -> None:
    indexed.start()
    first = indexed.send("one")
    settle(indexed, eventually)
    indexed.layout.index_mark.unlink()  # a stock broker knows no mark
    second = indexed.send("one")
    indexed.start()
    assert len(indexed.files.names()) == 1
    indexed.follow()
    assert indexed.find("one") == [second, first]


def test_an_index_that_names_more_than_the_log_has_is_dropped(indexed: Indexed, eventually: Eventually) -> None:
    indexed.start()
    indexed.send("one")
    settle(indexed, eventually)
    path = indexed.layout.index / indexed.files.names()[0]
    content = bytearray(path.read_bytes())
    content[24:32] = (1 << 40).to_bytes(8, "big")
    path.write_bytes(content)
    checkpoint = read_checkpoint(indexed.layout)
    write_checkpoint(indexed.layout, checkpoint)
    indexed.start()
    assert indexed.files.names() == []


def test_a_damaged_stretch_of_the_log_is_stepped_over(indexed: Indexed) -> None:
    indexed.start()
    indexed.send("one")
    bad = indexed.send("two")
    after = indexed.send("three")
    with (indexed.layout.commitlog / f"{0:020d}").open("r+b") as file:
        file.seek(bad + 4)
        file.write(b"\0\0\0\1")
    indexed.follow()
    assert indexed.find("three") == [after]
    assert [event["end"] for event in indexed.running.events.named("index.damage")] == [after]


def test_records_without_properties_are_not_even_looked_at(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed.start()
    first = indexed.send("one")
    indexed.follow()
    for _ in range(20):
        indexed.running.send("orders", b"bare")

    def looked(*_: Any) -> None:
        raise AssertionError("the log was walked")

    with monkeypatch.context() as patched:
        patched.setattr(indexed.keeper, "_step", looked)
        indexed.follow()
    assert indexed.keeper.position == indexed.running.store.log_end
    indexed.running.send("orders", b"bare")
    second = indexed.send("one")
    indexed.running.send("orders", b"bare")
    indexed.follow()
    assert indexed.find("one") == [second, first]


def test_a_long_record_with_a_key_is_looked_at_too(indexed: Indexed) -> None:
    indexed.start()
    indexed.follow()
    position = int(indexed.running.send("orders", bytes(100_000), keys=["long"]).log_position)
    indexed.follow()
    assert indexed.find("long") == [position]


# ---- damage, and syncs that fail -------------------------------------------------------------------------


def fill_three(indexed: Indexed, eventually: Eventually) -> list[str]:
    """Three settled files with one key that all records have; returns their names."""
    indexed.start()
    for number in range(40):
        indexed.send(f"k{number}", "same")
    settle(indexed, eventually)
    names = indexed.files.names()
    assert len(names) == 3 and IndexSums(indexed.layout).names() == names
    return names


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change bits of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bits]))


def all_found(indexed: Indexed) -> bool:
    return len(indexed.find("same")) == 40 and all(len(indexed.find(f"k{number}")) == 1 for number in range(40))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("where", ["head", "slots", "entries", "sums", "missing"])
def test_a_damaged_file_is_noticed_at_start_and_built_again_from_the_log(
    indexed: Indexed, eventually: Eventually, number: int, where: str
) -> None:
    name = fill_three(indexed, eventually)[number]
    path = indexed.layout.index / name
    before = [(path.name, path.read_bytes()) for path in sorted(indexed.layout.index.iterdir())]
    if where == "missing":
        path.unlink()
    elif where == "sums":
        flip(indexed.layout.index_sums / name, 33)
    else:
        flip(path, {"head": 7, "slots": 40 + 4 * 3 + 3, "entries": 40 + 4 * 16 + 20 * 5 + 2}[where])
    keeper = indexed.start()
    assert len(keeper.faults) == 1 and name in keeper.faults[0]
    eventually(lambda: indexed.follow() or (all_found(indexed) and not keeper.is_mending), "it was not built again")
    settle(indexed, eventually)
    after = [(path.name, path.read_bytes()) for path in sorted(indexed.layout.index.iterdir())]
    for (_, now), (_, then) in zip(after, before, strict=True):
        assert [at for at in range(len(then)) if now[at] != then[at]] == [], (now[:40].hex(), then[:40].hex())
    assert indexed.start().faults == () and all_found(indexed)


@pytest.mark.slow
def test_every_flipped_byte_of_the_index_and_of_what_speaks_of_it_is_noticed_and_every_key_is_found(
    indexed: Indexed, eventually: Eventually
) -> None:
    names = fill_three(indexed, eventually)
    paths = [indexed.layout.index / name for name in names]
    paths += [indexed.layout.index_sums / name for name in names] + [indexed.layout.index_mark]
    whole = {path: path.read_bytes() for path in paths}
    for path in paths:
        live = 40 + 4 * 16 + 20 * indexed.files.open(path.name).head().next_entry if path in paths[:3] else 1 << 20
        for at in range(0, min(live, len(whole[path])), 3):
            flip(path, at, 0x01 if at % 2 else 0xFF)
            keeper = indexed.start()
            assert keeper.faults, (path, at)
            eventually(lambda: indexed.follow() or all_found(indexed), f"byte {at} of {path}")
            keeper.close()
            indexed.keeper = None
            for other in [*indexed.layout.index.iterdir(), *indexed.layout.index_sums.iterdir()]:
                other.unlink()
            for other, content in whole.items():
                other.write_bytes(content)


def test_an_older_file_that_was_put_back_is_noticed(indexed: Indexed, eventually: Eventually) -> None:
    indexed.start()
    first = indexed.send("one")
    settle(indexed, eventually)
    (name,) = indexed.files.names()
    older = (indexed.layout.index / name).read_bytes()
    second = indexed.send("one")
    settle(indexed, eventually)
    (indexed.layout.index / name).write_bytes(older)
    assert len(indexed.start().faults) == 1
    indexed.follow()
    assert indexed.find("one") == [second, first]


def test_a_file_that_was_damaged_while_it_lay_still_is_not_written_to(indexed: Indexed, eventually: Eventually) -> None:
    indexed.start()
    first = indexed.send("one")
    settle(indexed, eventually)
    (name,) = indexed.files.names()
    flip(indexed.layout.index / name, 40 + 4 * 16 + 20 + 11)
    second = indexed.send("one")
    indexed.follow()
    assert len(indexed.running.events.named("index.file_dropped")) == 1
    assert indexed.find("one") == [second, first]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_scrubber_has_a_damaged_file_built_again(indexed: Indexed, eventually: Eventually, number: int) -> None:
    name = fill_three(indexed, eventually)[number]
    keeper = indexed.keeper
    assert keeper is not None
    flip(indexed.layout.index / name, 40 + 4 * 16 + 20 * 3 + 19)
    with_fault = [sums for sums in keeper.settled_sums() if sums.wrong_block(indexed.files.open(sums.name)) is not None]
    assert [sums.name for sums in with_fault] == [name]
    assert keeper.rebuild(name, "block 0")
    eventually(lambda: indexed.follow() or (all_found(indexed) and not keeper.is_mending))
    settle(indexed, eventually)
    assert indexed.start().faults == () and all_found(indexed)


def test_a_failed_sync_is_final_and_what_it_covered_is_written_anew(
    indexed: Indexed, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed.start()
    positions = [indexed.send(f"k{number}", "same") for number in range(8)]
    KeeperStore(indexed.running.store).flush()
    indexed.follow()
    inodes = {(indexed.layout.index / name).stat().st_ino for name in indexed.files.names()}
    with monkeypatch.context() as patched:
        patched.setattr(IndexFile, "sync", failing)
        eventually(lambda: indexed.follow(11.0) or indexed.running.events.named("index.not_synced"))
    assert read_index_mark(indexed.layout) == IndexMark(positions[0], "")
    indexed.follow()
    assert indexed.find("same") == positions[::-1]
    assert not inodes & {(indexed.layout.index / name).stat().st_ino for name in indexed.files.names()}
    eventually(lambda: indexed.follow(1000.0) or indexed.keeper._is_settled)
    assert indexed.start().faults == () and indexed.find("same") == positions[::-1]


def failing(_: object) -> None:
    raise OSError(5, "Input/output error")
