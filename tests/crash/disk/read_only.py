"""python read_only.py HOW   a broker whose file system takes no more writes while it idles, and takes them again later

HOW   error   ext4 meets an error: `errors=remount-ro`. Then it is unmounted, checked and mounted again.
      bind    a read-only mount comes over the store, as container runtimes make them. Then that is taken away.

An operator's own `mount -o remount,ro` is refused by the kernel, as files are open; that is tried as well.

Runs in a mount namespace of its own; prints one word for each thing that came as it has to.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.client.connection import Connection
from shmq.errors import ReadOnlyStore, ShmqError
from shmq.figures.observer import Observer
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Verdict
from shmq.testing import Broker
from shmq.tools.health.examine import examine
from tests.deadline import eventually
from tests.tools.shell import Shell
from tests.tools.store.conftest import end_in_order

IDLE_SECONDS_MAX = 30.0
IMAGE_BYTES = 96 << 20
FILE_BYTES = 1 << 20
COUNT = 50


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def is_critical(broker: Broker) -> bool:
    with Observer(broker.url) as observer:
        report = examine(observer, Thresholds())
    [store] = [each for each in report.findings if each.name == "store"]
    return store.verdict is Verdict.CRITICAL and "the disk refused to write" in store.what and "shmq serve" in store.do


class Disk:
    """An ext4 of its own at a path."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._image = root.with_name("image")
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()
        (root / "lost+found").rmdir()

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self._root))

    def meet_an_error(self) -> None:
        device = run("findmnt", "-n", "-o", "SOURCE", str(self._root)).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    def recover(self) -> None:
        """What an operator does: unmount it, check it, mount it again."""
        run("umount", str(self._root))
        assert subprocess.run(["e2fsck", "-fy", str(self._image)], capture_output=True, check=False).returncode < 4
        self.mount()


def make_read_only(how: str, disk: Disk, store: Path) -> None:
    if how == "error":
        disk.meet_an_error()
    else:
        # It comes read-only: made so over the store, it would be busy with what the broker opens in between.
        aside = store.with_name("aside")
        aside.mkdir()
        run("mount", "--bind", str(store), str(aside))
        run("mount", "-o", "remount,bind,ro", str(aside))
        run("mount", "--bind", str(aside), str(store))
        run("umount", str(aside))


def make_writable(how: str, disk: Disk, store: Path) -> None:
    gc.collect()  # errors that were expected hold frames, and these the files of the log
    if how == "error":
        disk.recover()
    else:
        run("umount", str(store))


def look_at_refusals(broker: Broker, mq: Connection, stored: int) -> None:
    """Of a broker whose file system takes no writes: nothing is called done, and what is there is read."""
    with pytest.raises(ReadOnlyStore):
        mq.send("orders", b"refused")
    print("refused")
    created = Shell(broker.url).run("topic", "create", "bills")
    assert created.status != 0 and "nothing was changed, as it cannot be saved" in created.err, created
    with pytest.raises(ShmqError, match="cannot be saved"):
        mq.admin.create_topic("bills")
    assert "bills" not in mq.admin.topics
    print("not-created")
    with broker.connect() as late, late.pull_consumer("orders", group="billing") as consumer:
        assert len(consumer.poll(max=stored + 1, wait=5.0)) == stored
    print("read")


def main(how: str) -> None:
    broker = Broker(flush="sync", file_bytes=FILE_BYTES, default_queues=1, log_format="json")
    broker.store.mkdir()
    disk = Disk(broker.store)
    with broker:
        with broker.connect() as mq:
            for number in range(COUNT):
                mq.send("orders", b"%d" % number)
            remount = ["mount", "-o", "remount,ro", str(broker.store)]
            assert subprocess.run(remount, capture_output=True, check=False).returncode != 0
            assert mq.send("orders", b"last").offset == COUNT
            print("busy")
            make_read_only(how, disk, broker.store)
            eventually(lambda: is_critical(broker), lambda: broker.log, timeout=IDLE_SECONDS_MAX)
            print("critical")
            eventually(lambda: '"disk.read_only"' in broker.log, lambda: broker.log)
            print("logged")
            look_at_refusals(broker, mq, COUNT + 1)
        end_in_order(broker)
        broker.kill_daemon()
        make_writable(how, disk, broker.store)
        broker.start()
        assert Shell(broker.url).run("health").status == 0
        with broker.connect() as mq:
            with mq.pull_consumer("orders", group="billing") as consumer:
                consumer.seek(0, "begin")
                assert [each.offset for each in consumer.poll(max=COUNT + 2, wait=5.0)] == list(range(COUNT + 1))
            assert mq.send("orders", b"again").offset == COUNT + 1
            mq.admin.create_topic("bills")
        print("back")


if __name__ == "__main__":
    main(sys.argv[1])
