"""How many processes are attached: counted by the kernel, so a crash cannot falsify it."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shmq.errors import ForeignNamespace, PermissionDenied
from shmq.shm.instance import Instance, segment_names
from shmq.shm.presence import (
    attach_presence,
    create_presence,
    detach_presence,
    presence_count,
    presence_key_of,
    remove_presence,
)

CHILD = """
import sys
from shmq.shm.instance import Instance
from shmq.shm.presence import attach_presence
attach_presence(Instance.from_json(sys.argv[1]))
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def instance(broker_name: str) -> Iterator[Instance]:
    generation = secrets.randbits(63)
    made = Instance(
        broker_name=broker_name,
        generation=generation,
        kind="posix",
        segments=segment_names(broker_name, generation),
        segment_bytes=(1, 1, 1),
        presence_key=presence_key_of(generation),
        store_path="/",
        uid=os.geteuid(),
        mode=0o600,
        boot_id="",
        pid_namespace=0,
    )
    assert create_presence(made.presence_key, mode=0o600, gid=-1)
    yield made
    remove_presence(made.presence_key, uid=os.geteuid())


def attached_child(instance: Instance) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, instance.to_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout and child.stdout.readline() == "attached\n"
    return child


def test_the_creator_counts_from_the_beginning(instance: Instance) -> None:
    assert presence_count(instance) == 1


def test_a_process_counts_once_however_often_it_attaches(instance: Instance) -> None:
    attach_presence(instance)
    attach_presence(instance)
    assert presence_count(instance) == 1
    for expected in (1, 1, 0, 0):
        detach_presence(instance)
        assert presence_count(instance) == expected


def test_a_killed_process_does_not_count_any_more(instance: Instance) -> None:
    child = attached_child(instance)
    assert presence_count(instance) == 2
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert presence_count(instance) == 1


def test_a_taken_key_is_not_taken_over(instance: Instance) -> None:
    assert not create_presence(instance.presence_key, mode=0o600, gid=-1)
    assert presence_count(instance) == 1


def test_a_missing_semaphore_means_another_ipc_namespace_or_none(instance: Instance) -> None:
    remove_presence(instance.presence_key, uid=os.geteuid())
    assert presence_count(instance) == 0
    with pytest.raises(ForeignNamespace, match="IPC"):
        attach_presence(instance)


def test_another_users_semaphore_is_refused_and_not_removed(instance: Instance) -> None:
    foreign = instance._replace(uid=os.geteuid() + 1)
    with pytest.raises(PermissionDenied, match=str(os.geteuid())):
        attach_presence(foreign)
    remove_presence(foreign.presence_key, uid=foreign.uid)
    assert presence_count(instance) == 1
