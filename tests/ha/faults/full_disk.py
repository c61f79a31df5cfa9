"""python full_disk.py PERCENT   a pair whose slave has its store on a small disk of its own, made here, that is filled

PERCENT is the slave's --disk-refuse: below 100 it refuses before the disk is full, at 100 the disk really is.
Runs in a mount namespace of its own; prints one word for each thing that came as it has to.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

from shmq.figures.verdict import Verdict
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, PAUSE_SECONDS, eventually
from tests.ha.faults.stored import prove
from tests.ha.faults.told import health_of
from tests.ha.pair import assert_equal, log_end, send, settled_end, slave_of
from tests.ha.seen import findings_of, until_named, until_told

FILE_BYTES = 1 << 20
LONG = b"x" * 20_000


class Hog:
    """A file that takes all the room that is left, and what others give back, until it is removed.

    A broker that tries to make a file and finds no room gives back what it had of it: enough for several log files.
    """

    def __init__(self, disk: Path) -> None:
        self._path = disk / "hog"
        self._stopping = threading.Event()
        self._is_full = threading.Event()
        self._thread = threading.Thread(target=self._grow, daemon=True)
        self._thread.start()
        assert self._is_full.wait(DEADLINE_SECONDS)

    def remove(self) -> None:
        """Give all of it back."""
        self._stopping.set()
        self._thread.join()
        self._path.unlink()

    def _grow(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._stopping.is_set():
                with contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
                self._is_full.set()
                self._stopping.wait(PAUSE_SECONDS)


def send_long(broker: Broker, count: int) -> None:
    with broker.connect() as mq:
        for _ in range(count):
            mq.send("long", LONG)


def main(percent: int) -> None:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES) as master:
        send(master, range(50))
        slave = slave_of(master, file_bytes=FILE_BYTES, disk_refuse_percent=percent)
        slave.store.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(slave.store)], check=True)
        with slave:
            assert_equal(master, slave)
            hog = Hog(slave.store)
            send_long(master, 400)
            words = ("the disk",) if percent == 100 else ("disk", "full")
            finding = until_named(slave, "master", *words)
            assert "make room" in finding.do or "store" in finding.do, finding
            until_told(slave, lambda told: told.master and told.master.state == "stuck")
            stuck_end = log_end(slave)
            assert stuck_end < log_end(master)
            shown = health_of(slave, "master", "disk")
            assert shown["verdict"] == "CRITICAL" and shown["do"] and "ships" in shown["what"], shown
            [lagging] = [each for each in findings_of(master, "replica") if each.measures]
            assert lagging.measures["lag"].value > 0, lagging
            print("stuck", flush=True)
            before = log_end(master)
            with slave.connect() as mq:
                mq.send("elsewhere", b"stored at the master")
            assert log_end(slave) == stuck_end and log_end(master) > before
            print("sends-at-its-master", flush=True)
            slave.kill_daemon()
            slave.restart()
            until_told(slave, lambda told: told.master and told.master.state == "stuck")
            assert log_end(slave) == stuck_end
            print("stuck-again", flush=True)
            hog.remove()
            settled_end(master, slave)
            send(master, range(50, 100))
            assert_equal(master, slave)
            eventually(lambda: [each.verdict for each in findings_of(slave, "master")] == [Verdict.OK])
            print("goes-on", flush=True)
            prove(slave)
            print("proven", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
