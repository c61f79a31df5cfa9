"""The rules by which members share queues, all but the average one, which has its own tests."""

from typing import Any

import pytest

from shmq.errors import UsageError
from shmq.protocol.allocation import allocate_by_consistent_hash, allocate_in_circle, strategy_of
from shmq.protocol.dialect import MessageQueue
from tests.tables.rows import every_row

QUEUES = [MessageQueue("broker-a", number, "T") for number in range(8)]
MEMBERS = ["c", "a", "b", "b"]


@every_row("name", ["average", "circle", "consistent_hash"])
@every_row("count", [1, 2, 3, 8, 9])
def test_all_shares_together_are_all_queues_once(name: str, count: int) -> None:
    allocate, members = strategy_of(name), [f"member-{number}" for number in range(count)]
    shares: list[Any] = [queue for member in members for queue in allocate(members, member, QUEUES)]
    assert sorted(shares) == QUEUES


@pytest.mark.parametrize("name", ["average", "circle", "consistent_hash", "machine_room:x"])
def test_a_stranger_gets_nothing(name: str) -> None:
    assert strategy_of(name)(MEMBERS, "stranger", QUEUES) == []
    assert strategy_of(name)([], "a", QUEUES) == []


def test_the_circle_gives_every_third_queue_to_each_of_three() -> None:
    shares = {member: [queue.queueId for queue in allocate_in_circle(MEMBERS, member, QUEUES)] for member in "abc"}
    assert shares == {"a": [0, 3, 6], "b": [1, 4, 7], "c": [2, 5]}


def test_with_consistent_hashing_a_member_that_leaves_moves_only_its_own_queues() -> None:
    def owners(members: list[str]) -> dict[MessageQueue, str]:
        return {queue: member for member in members for queue in allocate_by_consistent_hash(members, member, QUEUES)}

    before, after = owners(["a", "b", "c"]), owners(["a", "b"])
    assert all(after[queue] == member for queue, member in before.items() if member != "c")


def test_a_machine_room_shares_the_queues_of_its_brokers() -> None:
    queues = [MessageQueue(f"{room}@b", number, "T") for room in ("x", "y") for number in range(3)]
    allocate = strategy_of("machine_room:x")
    assert [queue.queueId for queue in allocate(["a", "b"], "a", queues)] == [0, 2]
    assert [queue.queueId for queue in allocate(["a", "b"], "b", queues)] == [1]
    assert strategy_of("machine_room:z")(["a"], "a", queues) == []


def test_configured_queues_are_read_whatever_the_members() -> None:
    assert [queue.queueId for queue in strategy_of("config:0,3,99")(MEMBERS, "a", QUEUES)] == [0, 3]


@every_row("text", ["", "random", "machine_room", "config:x", "average:1", "config:"])
def test_a_rule_that_does_not_exist_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        strategy_of(text)
    assert "consistent_hash" in caught.value.hint
