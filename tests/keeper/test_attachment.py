"""Warm or cold: living segments are attached to again; what cannot be trusted is retired before there are new ones."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmq.daemon.keeper.keeper import WATCH_SECONDS
from shmq.daemon.keeper.live.held_files import FileNews
from shmq.errors import CorruptionError, DamagedMessage, SegmentError, ShmqError
from shmq.figures.changed_files import SAVED
from shmq.options.broker import Options
from shmq.shm.access import access_rights
from shmq.shm.core import READ_ONLY_FILES_LOST, READ_ONLY_FLUSH_FAILED, KeeperStore, Producer, Reader, ReplicaStore
from shmq.shm.counters import KEEPER, create_counters, open_counter_writer, remove_counters
from shmq.shm.instance import write_instance
from shmq.shm.liveness import own_mark
from shmq.shm.log_reach import BACK_SECONDS
from shmq.shm.presence import presence_count
from shmq.shm.segment import SHM_DIRECTORY, open_store
from shmq.store.checkpoint import read_checkpoint
from shmq.tools.cli import cli
from tests.keeper.live.changes import copy as copy_as_it_runs
from tests.store.file_changes import NO_FILES, directory, grown, halved, pipe, removed
from tests.tables.rows import every_row

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]

CLIENT = """
import sys
from shmq.shm.presence import attach_presence
from shmq.shm.segment import Instance, open_store
instance = Instance.from_json(sys.argv[1])
store = open_store(instance, writable=True)
attach_presence(instance)
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def client() -> Iterator[Callable[[Any], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(running: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, running.attached.instance.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout and process.stdout.readline() == "attached\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_living_segments_are_attached_to_again(start_keeper: StartKeeper, eventually: Eventually) -> None:
    first = start_keeper()
    sent = [first.send("orders", b"%d" % number).offset for number in range(100)]
    first.abandon()
    second = start_keeper()
    assert second.attached.report is None
    assert second.attached.instance.generation == first.attached.instance.generation
    sent += [second.send("orders", b"%d" % number).offset for number in range(100, 200)]
    assert sent == list(range(200))
    index = second.queue_index("orders")
    eventually(lambda: second.store.queue(index)[2] == 200)
    content = (second.root / "consumequeue/orders/0/00000000000000000000").read_bytes()
    assert content[: 200 * 20] == KeeperStore(second.store).units_read(index, 0, 200)


def test_a_file_the_former_keeper_made_but_did_not_announce_is_used(start_keeper: StartKeeper) -> None:
    first = start_keeper()
    first.halt()
    end = first.attached.files.commitlog.create_next()
    first.abandon()
    second = start_keeper()
    assert second.store.allocated_end == end


@pytest.mark.parametrize("change", [{"flush": "sync"}, {"read_only": 1}, {"retired": True}])
def test_segments_that_do_not_fit_any_more_are_retired_and_made_anew(
    start_keeper: StartKeeper, change: dict[str, Any]
) -> None:
    first = start_keeper()
    first.send("orders", b"kept")
    if "read_only" in change:
        KeeperStore(first.store).set_read_only(change["read_only"])
    if "retired" in change:
        KeeperStore(first.store).set_retired()
    first.abandon()
    left = open_store(first.attached.instance, writable=True)
    second = start_keeper(**({"flush": change["flush"]} if "flush" in change else {}))
    assert second.attached.report is not None
    assert second.attached.instance.generation != first.attached.instance.generation
    assert left.retired
    assert second.store.message_at(0).body == b"kept"
    assert second.store.read_only == 0
    names = [name for name in os.listdir(SHM_DIRECTORY) if first.options.broker_name in name]
    assert all(f"{second.attached.instance.generation:016x}" in name for name in names)


def test_a_producer_of_retired_segments_cannot_append_any_more(start_keeper: StartKeeper) -> None:
    first = start_keeper()
    first.send("orders", b"kept")
    first.abandon()
    old = open_store(first.attached.instance, writable=True)
    second = start_keeper(flush="sync")
    end = second.store.log_end
    assert (old.retired, old.allocated_end) == (True, 0)
    assert second.store.log_end == end


def put_a_copy(path: Path) -> None:
    os.replace(shutil.copy(path, path.parent.parent / "copy"), path)


def put_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / "elsewhere"))


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        (0, Path.unlink),
        (READ_ONLY_FLUSH_FAILED, Path.unlink),
        (READ_ONLY_FILES_LOST, put_a_link),
        (0, put_a_copy),
    ],
)
def test_a_log_file_that_went_while_no_keeper_ran_is_saved_from_a_client_that_has_it_open(
    start_keeper: StartKeeper, reason: int, change: Callable[[Path], object]
) -> None:
    first = start_keeper()
    client = open_store(first.attached.instance, writable=True)
    producer = Producer(client, resolve=client.topic_find)
    first.send("orders", b"x")
    producer.send("orders", b"x", queue_id=0)
    first.abandon()
    change(first.root / "commitlog" / ("0" * 20))
    producer.send("orders", b"x", queue_id=0)
    KeeperStore(client).set_read_only(reason)  # as its last keeper left it
    second = start_keeper()
    [saved] = second.events.named("file.saved")
    assert second.attached.report is not None
    assert second.tells(first.root / "commitlog" / ("0" * 20), "saved", saved["what"]), "until the broker's next start"
    assert second.store.queue(second.queue_index("orders"))[1] == 3
    with pytest.raises(ShmqError):
        producer.send("orders", b"late", queue_id=0)
    client.close()


@pytest.mark.parametrize("name", ["commitlog", "."])
def test_what_a_client_stores_while_a_copy_lies_at_the_path_and_no_keeper_runs_is_in_the_log(
    name: str, start_keeper: StartKeeper
) -> None:
    first = start_keeper()
    first.send("orders", b"kept", queue_id=1)
    first.abandon()
    descriptors = [os.open(first.root / each, os.O_RDONLY) for each in (".", "commitlog")]
    path = first.root / name
    client, late = (open_store(first.attached.instance, writable=True) for _ in range(2))
    producer = Producer(client, resolve=client.topic_find)
    shutil.copytree(path, first.root.parent / "copy")
    path.rename(first.root.parent / "moved")
    (first.root.parent / "copy").rename(path)
    stranger = open_store(first.attached.instance, writable=True)
    with pytest.raises(SegmentError, match="another directory lies at the path of the log"):
        Producer(stranger, resolve=stranger.topic_find).send("orders", b"nowhere", queue_id=1)
    bodies = [b"stored" for _ in range(3) if producer.send("orders", b"stored", queue_id=1)]
    bodies += [b"also" for _ in range(3) if Producer(late, resolve=late.topic_find).send("orders", b"also", queue_id=1)]
    second = start_keeper(descriptors)
    assert second.attached.report is None, "the segments are as good as before"
    for store in (client, late, stranger):
        Producer(store, resolve=store.topic_find).send("orders", b"after", queue_id=1)
        store.close()
    for descriptor in descriptors:
        os.close(descriptor)
    assert len(second.events.named("file.saved")) == 1 and second.stop()
    third = start_keeper()
    assert not third.events.named("recovery.damage")
    reader = Reader(third.store)
    reader.assign("orders", third.queue_index("orders", 1), 1, 0)
    assert [bytes(message.body) for message in reader.poll(20)] == [b"kept", *bodies, *[b"after"] * 3]


def test_a_client_waits_longer_for_the_directory_than_a_keeper_takes_to_put_it_back() -> None:
    assert BACK_SECONDS >= 3 * WATCH_SECONDS, "one look that has just passed, the next one, and a slow disk"


@pytest.mark.parametrize("copied", ["before", "after", "before, its log after"])
@pytest.mark.parametrize("role", ["master", "slave"])
def test_segments_of_a_broker_that_was_killed_are_no_part_of_a_copy_that_took_the_place_of_its_store(
    role: str, copied: str, start_keeper: StartKeeper, eventually: Eventually
) -> None:
    own = {"role": "slave", "master": "127.0.0.1:10911"} if role == "slave" else {}
    first = start_keeper()
    first.send_batch("orders", [b"kept"] * 300)
    eventually(lambda: first.attached.files.mark.current.dispatched == first.store.log_end)
    copy, begin = first.root.parent / "copy", first.store.log_end
    is_older = copied == "before"
    if copied != "after":
        copy_as_it_runs(first.root, copy)
    first.send_batch("orders", [b"later"] * 30)
    eventually(lambda: first.store.queue(first.queue_index("orders")).persisted == 330)
    end = first.store.log_end
    if role == "slave":
        ReplicaStore(first.store).follow(own["master"])
    first.abandon()
    if copied == "after":
        shutil.copytree(first.root, copy)
    elif not is_older:
        shutil.copytree(first.root / "commitlog", copy / "commitlog", dirs_exist_ok=True)
    shutil.rmtree(first.root)
    copy.rename(first.root)
    second = start_keeper(**own)
    assert second.attached.report is not None
    [given_up] = second.events.named("segments.given_up")
    assert given_up["reason"] == "another directory lies at the path of their log"
    bodies = [b"kept"] * 300 + ([] if is_older else [b"later"] * 30)
    damages = [(each["log_position"], each["end"]) for each in second.events.named("recovery.damage")]
    if role == "slave":
        assert damages == [] and second.store.log_end == (begin if is_older else end), "its master has the rest"
    else:
        assert damages == ([(begin, end)] if is_older else []) and second.store.log_end == end
        assert second.send("orders", b"next", queue_id=0).offset == 330, "no offset is given out twice"
        bodies.append(b"next")
    reader = Reader(second.store)
    reader.assign("orders", second.queue_index("orders"), 0, 0)
    found: list[bytes] = []

    def has_all() -> bool:
        with contextlib.suppress(DamagedMessage):  # once for each that is lost
            found.extend(bytes(message.body) for message in reader.poll(1000))
        return found == bodies

    eventually(has_all)


def test_an_older_copy_of_the_newest_log_file_is_no_part_of_living_segments(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    first = start_keeper()
    first.send_batch("orders", [b"kept"] * 300)
    eventually(lambda: first.attached.files.mark.current.dispatched == first.store.log_end)
    path, begin = first.root / "commitlog" / ("0" * 20), first.store.log_end
    copy = Path(shutil.copy(path, first.root / "copy"))
    first.send_batch("orders", [b"later"] * 30)
    eventually(lambda: first.store.queue(first.queue_index("orders")).persisted == 330)
    end = first.store.log_end
    assert end < first.options.file_bytes, "it is the newest file"
    first.abandon()
    copy.replace(path)
    second = start_keeper()
    [given_up] = second.events.named("segments.given_up")
    assert given_up["reason"] == f"the newest log file lacks the end of the log, {end}: it is an older copy"
    assert [(each["log_position"], each["end"]) for each in second.events.named("recovery.damage")] == [(begin, end)]
    assert second.send("orders", b"next", queue_id=0).offset == 330, "no offset is given out twice"
    reader = Reader(second.store)
    reader.assign("orders", second.queue_index("orders"), 0, 0)
    assert [bytes(message.body) for message in reader.poll(300)] == [b"kept"] * 300


def test_a_log_file_that_a_link_took_the_place_of_while_no_keeper_ran_is_read_where_the_link_leads(
    start_keeper: StartKeeper,
) -> None:
    first = start_keeper()
    first.send("orders", b"kept")
    first.abandon()
    put_a_link(first.root / "commitlog" / ("0" * 20))
    second = start_keeper()
    assert second.store.message_at(0).body == b"kept" and not second.events.named("file.lost")


def test_what_took_the_name_of_a_file_while_no_keeper_ran_is_put_aside_and_the_file_written_again(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    running.send("orders", b"kept", key="k")
    eventually(lambda: running.attached.files.mark.current.dispatched == running.store.log_end)
    names = ["shmq.durable", "shmq.units", "config/shmq.json"]
    for number, name in enumerate(names):
        path = running.root / name
        running.abandon()
        eventually(path.exists)
        (pipe, put_a_link, directory)[number % 3](path)
        running = start_keeper()
        [told] = running.events.named("file.restored")
        assert told["file"] == str(path) and running.tells(path, "restored", told["what"], "")
        (running.root / "elsewhere").unlink(missing_ok=True)
    assert running.stop()
    again = start_keeper()
    assert again.store.message_at(0).body == b"kept" and again.attached.report.clean


def test_a_newest_file_of_units_that_was_changed_while_no_keeper_ran_is_written_again_whole(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    for _ in range(50):
        running.send("orders", b"kept")
    path = running.root / "consumequeue/orders/0" / ("0" * 20)
    eventually(lambda: running.attached.files.mark.current.dispatched == running.store.log_end)
    before = path.read_bytes()
    for change in (*NO_FILES, removed, halved, grown):
        running.abandon()
        change(path)
        running = start_keeper()
        [told] = running.events.named("file.restored")
        assert told["file"] == str(path) and path.is_file() and path.read_bytes() == before, change
    assert running.stop()
    report = start_keeper().attached.report
    assert report.clean and report.units_repaired == 0


def test_a_log_file_that_was_truncated_while_no_keeper_ran_is_stepped_over_where_it_is_lost(
    start_keeper: StartKeeper,
) -> None:
    first = start_keeper()
    first.send("orders", b"kept")
    end = first.store.log_end
    first.send("orders", b"lost")
    first.abandon()
    os.truncate(first.root / "commitlog" / ("0" * 20), end)
    second = start_keeper()
    [lost] = second.events.named("file.lost")
    assert f"log positions {end} to" in lost["what"] and second.attached.report is not None
    assert second.tells(first.root / "commitlog" / ("0" * 20), "lost", lost["what"], lost["do"])
    assert second.store.message_at(0).body == b"kept" and second.store.read_only == 0


def test_what_a_keeper_that_was_killed_had_not_saved_of_a_replaced_log_file_is_lost_and_said(
    start_keeper: StartKeeper,
) -> None:
    first = start_keeper()
    first.send("orders", b"kept")
    first.halt()
    begin = first.store.log_end
    put_a_copy(first.root / "commitlog" / ("0" * 20))
    first.send("orders", b"lost")
    end = first.store.log_end
    KeeperStore(first.store).set_read_only(READ_ONLY_FILES_LOST)
    first.abandon()
    second = start_keeper()
    [lost] = second.events.named("recovery.damage")
    assert (lost["log_position"], lost["end"]) == (begin, end)
    assert second.store.message_at(0).body == b"kept" and second.store.read_only == 0
    assert second.send("orders", b"x", queue_id=0).offset == 2


@pytest.mark.parametrize("where", ["in memory alone", "in both", "in files alone"])
def test_no_queue_offset_is_given_out_again_where_log_files_were_lost_while_no_keeper_ran(
    where: str, start_keeper: StartKeeper, eventually: Eventually
) -> None:
    first = start_keeper()
    first.send_batch("orders", [bytes(1000)] * 200)
    eventually(lambda: first.store.queue(first.queue_index("orders")).persisted == 200)
    if where == "in files alone":
        assert first.stop()
        first = start_keeper()
    first.halt()
    if where == "in memory alone":
        first.send_batch("orders", [bytes(1000)] * 100)
    given, end = first.store.queue(first.queue_index("orders")).offset_max, first.store.log_end
    first.abandon()
    lost = end - end % first.options.file_bytes
    running = first.attached.instance._replace(processes={"supervisor": own_mark()})
    write_instance(first.options.place.instance_path, running, mode=0o600, gid=-1)
    shutil.rmtree(first.root)
    with pytest.raises(CorruptionError, match=r"log files? (is|are) missing") as refused:
        start_keeper()
    [numbers] = re.findall(r"--accept-loss ([0-9,-]+)", refused.value.hint)
    assert int(numbers.partition("-")[0]) == 0 and int(numbers.rpartition("-")[2]) > lost
    second = start_keeper(accept_loss=numbers)
    assert second.send("orders", b"x").offset == given


@pytest.mark.parametrize("gone", [["consumequeue"], ["consumequeue", "shmq.units"]])
def test_units_that_went_together_with_a_log_file_are_all_written_again(
    gone: list[str], start_keeper: StartKeeper, eventually: Eventually
) -> None:
    first = start_keeper()
    client = open_store(first.attached.instance, writable=True)
    first.topic("orders")
    Producer(client, resolve=client.topic_find).send_batch("orders", [b"kept"] * 200, queue_id=0)
    eventually(lambda: first.store.queue(first.queue_index("orders")).persisted == 200)
    first.abandon()
    for name in gone:
        path = first.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    put_a_copy(first.root / "commitlog" / ("0" * 20))
    second = start_keeper()
    client.close()
    assert second.attached.report is not None, "the segments were given up"
    reader = Reader(second.store)
    reader.assign("orders", second.queue_index("orders"), 0, 0)
    assert [bytes(message.body) for message in reader.poll(1000)] == [b"kept"] * 200


def test_a_store_that_was_emptied_when_its_broker_had_ended_is_an_empty_one(start_keeper: StartKeeper) -> None:
    first = start_keeper()
    first.send_batch("orders", [bytes(1000)] * 100)
    first.abandon()
    shutil.rmtree(first.root)
    second = start_keeper()
    assert second.store.log_end == 0 and second.send("orders", b"x").offset == 0


@pytest.mark.parametrize(("role", "is_older"), [("master", False), ("slave", False), ("slave", True)])
def test_no_part_of_a_former_log_comes_into_one_that_was_emptied_or_is_to_follow_again(
    role: str, is_older: bool, start_keeper: StartKeeper, eventually: Eventually
) -> None:
    """A program may have its newest file open: a log that begins there knows no queue that has no record in it."""
    own = {"role": "slave", "master": "127.0.0.1:10911"} if role == "slave" else {}
    first = start_keeper()
    first.send("orders", b"kept", queue_id=1)
    end = first.store.log_end
    eventually(lambda: first.attached.files.mark.current.dispatched == end)
    copy_as_it_runs(first.root, first.root.parent / "copy")
    file_bytes = first.options.file_bytes
    while first.store.log_end < 2 * file_bytes:
        first.send("orders", bytes(10_000), queue_id=0)
    program = open_store(first.attached.instance, writable=False)
    assert program.message_at(2 * file_bytes).body == bytes(10_000)
    if role == "slave":
        ReplicaStore(first.store).follow(own["master"])
    first.abandon()
    shutil.rmtree(first.root)
    if is_older:
        (first.root.parent / "copy").rename(first.root)
    second = start_keeper(**own)
    assert (second.store.log_begin, second.store.log_end) == (0, end if is_older else 0)
    assert not second.events.named("file.saved") and not second.events.named("file.lost")
    assert not second.events.named("recovery.damage")
    program.close()
    kept = second.root / "quarantine/removed.1"
    if role == "slave":
        assert not kept.exists(), "its master has it"
        return
    [told] = second.events.named("file.kept")
    assert told["file"] == str(second.root / "commitlog" / f"{2 * file_bytes:020d}")
    command = shlex.split(told["do"].removesuffix(", or remove it"))
    output = second.root.parent / "kept"
    assert command == ["shmq", "store", "export", str(kept), "--output", "FILE"]
    result = CliRunner().invoke(cli, [*command[1:-1], str(output)])
    assert result.exit_code == 0, result.output
    sizes = [len(b64decode(json.loads(line)["body_base64"])) for line in output.read_text().splitlines()]
    assert sizes and set(sizes) == {10_000}


def test_what_a_keeper_told_of_changed_files_is_named_by_the_next_one_of_the_same_broker(
    start_keeper: StartKeeper,
) -> None:
    for is_running in (True, False):
        first = start_keeper()
        create_counters(first.attached.instance, access_rights(), bridges=1)
        writer = open_counter_writer(first.attached.instance, KEEPER)
        path = first.root / "commitlog" / ("0" * 20)
        FileNews(writer, first.events).tell(path, SAVED, "was removed")
        writer.close()
        KeeperStore(first.store).set_read_only(READ_ONLY_FILES_LOST)
        first.abandon()
        told = first.attached.instance
        if is_running:
            told = told._replace(processes={"supervisor": own_mark()})
        write_instance(first.options.place.instance_path, told, mode=0o600, gid=-1)
        second = start_keeper()
        remove_counters(told)
        assert second.attached.report is not None
        assert second.tells(path, SAVED, "was removed") is is_running, "a start of the broker ends it"
        assert not second.events.named("file.saved"), "the event log has it"
        second.end()


def test_segments_that_cannot_be_opened_are_not_replaced_while_a_process_may_append(
    start_keeper: StartKeeper, client: Callable[[Any], subprocess.Popen[str]]
) -> None:
    first = start_keeper()
    process = client(first)
    first.abandon()
    # /dev/shm was cleaned by hand; the client still maps what it has.
    for name in os.listdir(SHM_DIRECTORY):
        if first.options.broker_name in name and not name.startswith("sem."):
            os.unlink(SHM_DIRECTORY / name)
    with pytest.raises(SegmentError, match="2 processes are attached"):
        start_keeper()
    process.kill()
    process.communicate()
    assert presence_count(first.attached.instance) == 1  # this process


def test_a_dead_keepers_half_recovered_segments_are_swept(start_keeper: StartKeeper, client: Any) -> None:
    first = start_keeper()
    first.end()
    assert start_keeper().attached.report is not None


def test_an_unreadable_instance_file_means_a_cold_start(start_keeper: StartKeeper) -> None:
    first = start_keeper()
    first.send("orders", b"kept")
    first.end()
    first.options.place.instance_path.write_text("{")
    second = start_keeper()
    assert second.attached.report is not None
    assert second.events.named("instance.unreadable")
    assert second.store.message_at(0).body == b"kept"


def test_an_elected_broker_that_comes_again_shows_no_more_than_it_knew_as_confirmed(
    start_keeper: StartKeeper, options: Options, eventually: Eventually
) -> None:
    """Its positions behind that may have become those of other messages, on the host that leads now."""
    sync = {"role": "sync-master", "ha_listen": "127.0.0.1:10912", "flush_interval_ms": 20}
    etcd = {"etcd": "http://127.0.0.1:2379", "group_role": "sync-master"}

    @every_row(("how", "is_elected"), [("stop", True), ("end", True), ("stop", False), ("end", False)])
    def each(how: str, is_elected: bool) -> None:
        own = sync | {"store": f"{options.store}-{how}-{is_elected}"}
        first = start_keeper(**own)
        store, layout = first.store, first.attached.files.layout
        first.send("orders", b"on the disks of two")
        replica = ReplicaStore(store)
        eventually(lambda: replica.confirm(store.log_end, 0, 1.0) == store.log_end)
        confirmed = store.log_end
        first.send("orders", b"on this disk only")
        eventually(lambda: read_checkpoint(layout).flushed == store.log_end)
        assert read_checkpoint(layout).confirmed == confirmed
        end = store.log_end
        getattr(first, how)()
        again = start_keeper(**own, **(etcd if is_elected else {})).store
        assert again.log_end == again.durable_end == end > confirmed
        shown = confirmed if is_elected else end
        assert (again.confirmed_end, again.visible_end) == (shown, shown)
        assert read_checkpoint(layout).confirmed == shown

    each()
