"""What `mq.admin.health()` says of files that others changed: what `shmq health` says, of the same counters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.changed_files import ACCESS, LOST, RESTORED, SAVED
from shmq.checks import file_checks
from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.live.held_files import FileNews
from shmq.shm.access import access_rights
from shmq.shm.counters import KEEPER, create_counters, open_counter_writer, remove_counters
from shmq.shm.instance import Instance
from shmq.shm.liveness import boot_id, pid_namespace
from shmq.tools.health.broker_rules import broker_findings
from shmq.tools.health.thresholds import Thresholds
from shmq.tools.observe.counted import collect_counted
from tests.tools.health.test_rules import BROKER, SNAPSHOT

ROOT = BROKER.store_path


@pytest.fixture
def instance() -> Iterator[Instance]:
    generation = int.from_bytes(os.urandom(7)) | 1
    made = Instance(
        "checks", generation, "sysv", (0, 0, 0), (0, 0, 0), 1, ROOT, os.geteuid(), 0o600, boot_id(), pid_namespace()
    )
    create_counters(made, access_rights(), bridges=1)
    yield made
    remove_counters(made)


def test_each_fate_of_a_file_is_judged_as_the_command_does_with_cause_and_cure(instance: Instance) -> None:
    log = EventLog("keeper", descriptor=os.open(os.devnull, os.O_WRONLY))
    news = FileNews(open_counter_writer(instance, KEEPER), log)
    assert list(file_checks(instance)) == []
    for number, fate in enumerate((LOST, SAVED, RESTORED, ACCESS)):
        news.tell(Path(ROOT, f"file-{number}"), fate, f"was {fate}", "mend" * (fate == ACCESS))
    checks = list(file_checks(instance))
    snapshot = SNAPSHOT._replace(counted=collect_counted(instance))
    theirs = [each for each in broker_findings(snapshot, Thresholds()) if each.why]
    assert [check.verdict for check in checks] == [each.verdict.name for each in theirs]
    assert sorted(check.verdict for check in checks) == ["CRITICAL", "WARNING", "WARNING"]
    for check, each in zip(checks, theirs, strict=True):
        assert each.what in check.text and each.why in check.text and each.do in check.text
    remove_counters(instance)
    assert list(file_checks(instance)) == []
