"""Timed messages are listed as the broker knows them, and taken back only with a yes."""

import time

import pytest

from shmq.testing import SharedBroker
from tests.tools.shell import Shell


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("reminders")


def keys(shell: Shell, topic: str) -> list[str]:
    return [entry["key"] for entry in shell.json("timer-list", "timer", "list", "--topic", topic)["timers"]]


def test_what_waits_is_listed_by_its_time(shell: Shell, shmq_shared_broker: SharedBroker, topic: str) -> None:
    with shmq_shared_broker.connect() as mq:
        for key, delay in (("c", 7200.5), ("a", 60), ("b", 3600)):
            receipt = mq.send(topic, b"42 apples", delay=delay, key=key, queue_id=1)
    deadline = time.monotonic() + 20
    while (found := keys(shell, topic)) != ["a", "b", "c"]:
        assert time.monotonic() < deadline, found
    entry = shell.json("timer-list", "timer", "list", "--topic", topic)["timers"][1]
    assert entry["recall_handle"] == receipt.recall_handle
    assert (entry["topic"], entry["queue"], entry["body_bytes"]) == (topic, 1, 9)
    assert entry["due"] > entry["stored"]
    assert entry["id"] in shell.ok("timer", "list", "--limit", "1000").decode()
    assert len(shell.json("timer-list", "timer", "list", "--topic", topic, "--limit", "2")["timers"]) == 2


def test_a_message_is_taken_back_with_a_yes_only(shell: Shell, shmq_shared_broker: SharedBroker, topic: str) -> None:
    with shmq_shared_broker.connect() as mq:
        handle = mq.send(topic, b"x", delay=60, key="k").recall_handle
    assert handle is not None
    deadline = time.monotonic() + 20
    while keys(shell, topic) != ["k"]:
        assert time.monotonic() < deadline
    assert shell.run("timer", "cancel", handle).status == 64
    assert shell.json("timer-change", "timer", "cancel", handle, "--dry-run")["changed"] is False
    (line,) = shell.lines("timer-change", "timer", "cancel", handle, "--dry-run")
    assert (line["topic"], line["changed"]) == (topic, False)
    assert keys(shell, topic) == ["k"]
    assert shell.json("timer-change", "timer", "cancel", handle, "--yes")["changed"] is True
    assert keys(shell, topic) == []
    shell.fails(1, "timer", "cancel", handle, "--yes")


def test_timers_are_not_listed_over_tcp(shell: Shell) -> None:
    shell.fails(64, "timer", "list", "-u", "rocketmq://127.0.0.1:1")
