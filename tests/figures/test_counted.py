"""Lost lines and faults are read as the logs of the broker's processes counted them."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.live.held_files import FileNews
from shmq.figures.changed_files import LOST, RESTORED, ChangedFile
from shmq.figures.counted import collect_counted
from shmq.figures.snapshot import Counted
from shmq.shm.access import access_rights
from shmq.shm.counters import BRIDGE, KEEPER, create_counters, open_counter_writer, remove_counters
from shmq.shm.instance import Instance
from shmq.shm.liveness import boot_id, pid_namespace


@pytest.fixture
def instance() -> Iterator[Instance]:
    generation = int.from_bytes(os.urandom(7)) | 1
    made = Instance(
        "counted", generation, "sysv", (0, 0, 0), (0, 0, 0), 1, "/", os.geteuid(), 0o600, boot_id(), pid_namespace()
    )
    create_counters(made, access_rights(), bridges=2)
    yield made
    remove_counters(made)


def test_it_is_the_sum_of_all_processes_and_the_age_of_the_latest(instance: Instance) -> None:
    assert collect_counted(instance) == Counted(0, None, 0, None)
    began = time.time()
    reading, writing = os.pipe()
    logs = [EventLog("keeper", descriptor=writing), EventLog("bridge", descriptor=writing)]
    logs[0]("internal.error")  # before there are counters
    os.close(reading)
    for log, writer in zip(logs, (KEEPER, BRIDGE), strict=True):
        log("some.event")
        log.count_in(open_counter_writer(instance, writer))
        log("internal.error")
    os.close(writing)
    counted = collect_counted(instance)
    assert counted is not None and (counted.log_lines_dropped, counted.internal_errors) == (4, 3)
    for age in (counted.log_lines_dropped_age, counted.internal_errors_age):
        assert age is not None and 0 <= age <= time.time() - began + 0.001


def test_files_that_changed_are_reported_until_it_is_over(instance: Instance) -> None:
    news = FileNews(
        open_counter_writer(instance, KEEPER), EventLog("keeper", descriptor=os.open(os.devnull, os.O_WRONLY))
    )
    lost = Path("/store/commitlog/0")
    news.tell(lost, LOST, "was removed", "restore it")
    news.tell(lost, RESTORED, "was replaced")
    news.withdraw(lost, LOST)
    counted = collect_counted(instance)
    assert counted is not None and counted.files == (ChangedFile(str(lost), RESTORED, "was replaced", ""),)


def test_without_counters_nothing_is_known(instance: Instance) -> None:
    remove_counters(instance)
    assert collect_counted(instance) is None
