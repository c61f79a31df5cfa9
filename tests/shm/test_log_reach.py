"""Log files are opened in the directory that the segments name, and in no other that lies at its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.errors import ForeignNamespace, SegmentError
from shmq.shm import log_reach
from shmq.shm.core import BrokerTables, KeeperStore, Producer, Reader, Store
from shmq.shm.log_reach import hold_log
from shmq.shm.segment import SegmentSizes, create_segments, open_store, unlink_segments
from tests.tables.rows import every_row

FILES = 4


def fill(directory: Path, file_bytes: int) -> None:
    """Make empty log files."""
    directory.mkdir(parents=True)
    for number in range(FILES):
        (directory / f"{number * file_bytes:020d}").write_bytes(bytes(file_bytes))


class Segments:
    """Segments of a log that is empty, whose directory may be named."""

    def __init__(self, name: str, root: Path, sizes: SegmentSizes, *, is_named: bool) -> None:
        self.directory, self.elsewhere = root / "commitlog", root / "moved"
        self.file_bytes = sizes.file_bytes
        fill(self.directory, sizes.file_bytes)
        self.instance, self.store = create_segments(name, store_path=root, sizes=sizes)
        self.opened = [self.store]
        KeeperStore(self.store).set_allocated_end(FILES * sizes.file_bytes)
        BrokerTables(self.store).topic_put("orders", read_queues=1, write_queues=1)
        if is_named:
            self.name()

    def name(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY)
        KeeperStore(self.store).set_log_directory(descriptor)
        os.close(descriptor)

    def open(self, *, writable: bool = True) -> Store:
        self.opened.append(open_store(self.instance, writable=writable))
        return self.opened[-1]

    def move_away(self) -> None:
        self.directory.rename(self.elsewhere)

    def put_another(self) -> None:
        self.move_away()
        fill(self.directory, self.file_bytes)

    def used(self, directory: Path) -> list[bool]:
        """Of each file whether anything was stored there."""
        return [any(path.read_bytes()) for path in sorted(directory.iterdir())]


@pytest.fixture
def make(broker_name: str, sizes: SegmentSizes, tmp_path: Path) -> Iterator[Callable[..., Segments]]:
    made: list[Segments] = []

    def one(*, is_named: bool = True) -> Segments:
        number = len(made)
        made.append(Segments(f"{broker_name}-{number}", tmp_path / str(number), sizes, is_named=is_named))
        return made[-1]

    yield one
    for segments in made:
        for store in segments.opened:
            store.close()
        unlink_segments(segments.instance)


def send_through(store: Store, until: int) -> int:
    """Send until the log ends behind a position; returns how many."""
    producer, sent = Producer(store, resolve=store.topic_find), 0
    while store.log_end <= until:
        producer.send("orders", bytes(10_000), queue_id=0)
        sent += 1
    return sent


def count(store: Store) -> int:
    reader = Reader(store)
    reader.assign("orders", 0, 0, 0)
    found = 0
    while messages := reader.poll(1000):
        found += len(messages)
    return found


@every_row("change", [Segments.move_away, Segments.put_another])
def test_a_process_goes_on_in_the_directory_wherever_it_is(
    change: Callable[[Segments], None], make: Callable[..., Segments]
) -> None:
    segments = make()
    writer, reader = segments.open(), segments.open(writable=False)
    keeper = KeeperStore(segments.open())
    sent = send_through(writer, 0)
    change(segments)
    sent += send_through(writer, 2 * segments.file_bytes)
    assert segments.used(segments.elsewhere) == [True, True, True, False]
    assert not segments.directory.exists() or not any(segments.used(segments.directory))
    assert count(reader) == sent
    assert keeper.flush() == writer.log_end, "a thread that waits in the core has its own descriptors"


def test_one_that_comes_while_another_directory_lies_there_stores_and_reads_nothing(
    make: Callable[..., Segments],
) -> None:
    segments = make()
    sent = send_through(segments.open(), 0)
    segments.put_another()
    writer, reader = segments.open(), segments.open(writable=False)
    assert not writer.has_log_directory and not reader.has_log_directory
    for call in (lambda: send_through(writer, writer.log_end), lambda: count(reader), lambda: writer.message_at(0)):
        with pytest.raises(SegmentError, match="another directory lies at the path of the log"):
            call()
    assert not any(segments.used(segments.directory))
    segments.directory.rename(segments.directory.with_name("put-aside"))
    segments.elsewhere.rename(segments.directory)
    sent += send_through(writer, writer.log_end)
    assert writer.has_log_directory and count(reader) == sent


def test_a_directory_that_was_made_anew_is_found_by_those_that_hold_the_former_one(
    make: Callable[..., Segments],
) -> None:
    segments = make()
    writer = segments.open()
    sent = send_through(writer, 0)
    segments.put_another()
    first = segments.directory / f"{0:020d}"
    first.unlink()
    first.hardlink_to(segments.elsewhere / first.name)
    segments.name()
    sent += send_through(writer, segments.file_bytes)
    assert segments.used(segments.directory)[1] and not segments.used(segments.elsewhere)[1]
    assert count(segments.open(writable=False)) == sent


def test_where_no_directory_is_named_it_is_the_one_at_the_path(make: Callable[..., Segments]) -> None:
    segments = make(is_named=False)
    writer = segments.open()
    segments.put_another()
    send_through(writer, 0)
    assert segments.used(segments.directory)[0] and not any(segments.used(segments.elsewhere))


@every_row(
    ("change", "told"),
    [(Segments.move_away, "this process has no .*commitlog"), (Segments.put_another, "is another directory here")],
)
def test_a_client_waits_for_the_directory_and_says_what_lies_there(
    change: Callable[[Segments], None],
    told: str,
    make: Callable[..., Segments],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = make()
    change(segments)
    store = segments.open()
    now = [0.0]
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(log_reach.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log_reach.time, "sleep", sleep)
    with pytest.raises(ForeignNamespace, match=told) as refused:
        hold_log(segments.instance, store)
    assert "docker: --volumes-from" in refused.value.hint and 0.5 < sum(sleeps) < 2.0, "two looks of a keeper"

    def put_back(_: float) -> None:
        if segments.directory.exists():
            segments.directory.rename(segments.directory.with_name("put-aside"))
        segments.elsewhere.rename(segments.directory)

    monkeypatch.setattr(log_reach.time, "sleep", put_back)
    hold_log(segments.instance, store)
    assert store.has_log_directory


def test_what_reads_the_files_themselves_reads_them_in_that_directory(make: Callable[..., Segments]) -> None:
    """A slave of another broker stores whatever it is sent: the zeros of a copy, too."""
    segments = make()
    send_through(segments.open(), segments.file_bytes)
    whole = [(segments.directory / name).read_bytes() for name in sorted(os.listdir(segments.directory))]
    segments.put_another()
    for position, at in ((0, 0), (segments.file_bytes + 10, 1)):
        descriptor = segments.store.log_file(position)
        assert descriptor > 2 and os.pread(descriptor, segments.file_bytes, 0) == whole[at]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
        os.close(descriptor)
    with pytest.raises(SegmentError, match="opening a log file: No such file"):
        segments.store.log_file(FILES * segments.file_bytes)
    with pytest.raises(SegmentError, match="another directory lies"):
        segments.open(writable=False).log_file(0)
