"""An offset of a topic's former life never counts in the next one, whichever way a client brings it along."""

from typing import Any, NamedTuple

from shmq.daemon.broker.groups.lives import NAMES_PER_CONNECTION_MAX, Lives, QueueName
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Reply
from shmq.protocol.codes import Request
from shmq.protocol.command import FLAG_ONEWAY, Command
from tests.broker.conftest import MemoryTables
from tests.broker.memory_log import MemoryLog
from tests.broker.pulls.test_pulls import COMMIT, SUBSCRIPTION, SUSPEND, Consumer
from tests.tables.rows import every_row

MOVED = 21


class Member(Consumer):
    """A consumer of a topic that is deleted and made again, as a stock client."""

    def __init__(self, settings: BrokerSettings, *, model: str = "CLUSTERING", had: int | None = 0) -> None:
        tables = MemoryTables()
        super().__init__(tables, MemoryLog(tables), settings)
        for group in ("g", "h") if model else ():
            self.beat(model=model, group=group)
        if had is not None:
            self.put(*[b"old"] * had)
            self.next(had)

    def make_again(self, *bodies: bytes) -> None:
        self.tables.topic_delete("orders")
        self.tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
        self.queue = self.tables.topic("orders").queues[0]
        self.put(*bodies)

    def commit(self, offset: int, *, connection: int = 1, flag: int = FLAG_ONEWAY, now_ms: int = 0, **more: str) -> int:
        """Commit, as clients do again and again, and return what the group has then."""
        ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": str(offset)} | more
        command = Command(code=Request.UPDATE_CONSUMER_OFFSET, opaque=4, flag=flag, ext=ext)
        replies = self.broker.handle(connection, command, now_ms)
        assert [reply.command.code for reply in replies if isinstance(reply, Reply)] == ([] if flag else [0])
        return self.committed()

    def next(self, offset: int, **changes: Any) -> tuple[int, int]:
        reply = self.pull(offset, **{"flags": 0, "subscription": None} | changes)
        return reply.code, int(reply.ext["nextBeginOffset"])


class Case(NamedTuple):
    """How many messages the former life and the next one hold, and which pull is answered how."""

    had: int
    stored: int
    offset: int
    answer: tuple[int, int]
    group_at: int = -1
    model: str = "CLUSTERING"


@every_row(
    "case",
    [
        Case(6, 6, 6, (MOVED, 0)),  # as far as the new life goes
        Case(6, 2, 6, (MOVED, 0)),  # beyond its end
        Case(6, 40, 6, (MOVED, 0)),  # in the middle of it
        Case(6, 0, 6, (MOVED, 0)),  # nothing is there yet
        Case(6, 40, 3, (MOVED, 0)),  # the client was set back meanwhile
        Case(6, 40, 6, (MOVED, 0), model="BROADCASTING"),
        Case(0, 3, 0, (0, 3)),  # it was at the first message, and is
        Case(6, 40, 6, (MOVED, 4), 4),  # another member has read some
        Case(6, 40, 6, (0, 38), 6),  # it has asked where the group is
    ],
)
def test_a_pull_of_the_former_life_is_sent_to_the_first_message(settings: BrokerSettings, case: Case) -> None:
    member = Member(settings, model=case.model, had=case.had)
    member.make_again(*[b"new"] * case.stored)
    if case.group_at >= 0:
        member.commit(case.group_at, connection=2)
    assert member.next(case.offset) == case.answer
    offset = case.answer[1]
    assert member.next(offset) == ((0, min(offset + 32, case.stored)) if offset < case.stored else (19, offset))


def test_each_group_and_queue_and_each_life_is_sent_back_once(settings: BrokerSettings) -> None:
    member = Member(settings, had=6)
    member.next(6, consumerGroup="h")
    member.next(0, queueId="1")
    for _ in range(2):
        member.make_again(*[b"new"] * 9)
        assert member.next(6) == (MOVED, 0) and member.next(0) == (0, 9)
        assert member.next(6) == (0, 9), "a seek in the new life"
        assert member.next(6, consumerGroup="h") == (MOVED, 0) and member.next(0, queueId="1") == (19, 0)
    assert member.next(5, connection=2) == (0, 9), "another connection says what it wants"


def test_a_commit_of_the_former_life_is_passed_over_until_it_may_be_of_this_one(settings: BrokerSettings) -> None:
    member = Member(settings, had=40)
    assert member.commit(40) == 40
    member.make_again(*[b"new"] * 60)
    assert member.commit(40) == -1
    assert member.next(40, flags=COMMIT, commitOffset=39) == (MOVED, 0) and member.committed() == -1
    assert member.commit(40) == -1, "a client that drops the queue goes on for some seconds"
    assert member.commit(0) == 0, "and then says where it was sent"
    assert member.next(0, flags=COMMIT, commitOffset=40) == (0, 32) and member.committed() == 0
    assert member.commit(33) == 0 and member.commit(32) == 32
    assert member.next(32) == (0, 60) and member.commit(60) == 60 and member.commit(5) == 5


def test_a_commit_for_another_group_is_of_the_life_that_the_connection_pulls(settings: BrokerSettings) -> None:
    member = Member(settings, had=6)
    changes = {"consumerGroup": "TOOLS", "flags": SUBSCRIPTION, "subscription": "*", "connection": 2, "reader": "1"}
    assert member.next(6, **changes) == (19, 6) and member.commit(6, connection=2) == 6
    member.make_again(*[b"new"] * 9)
    assert member.commit(6, connection=2) == -1
    assert member.next(6, **changes) == (MOVED, 0) and member.commit(2, connection=2) == 2
    assert member.next(6, **changes | {"reader": "2"}) == (0, 9), "another reader says what it wants"


def test_a_pull_that_waits_in_the_former_life_is_answered_soon(settings: BrokerSettings) -> None:
    member = Member(settings, had=6)
    assert member.effects(6, SUSPEND) == []
    member.make_again(b"new")
    (reply,) = (effect for effect in member.broker.tick(1000) if isinstance(effect, Reply))
    assert (reply.command.code, reply.command.ext["nextBeginOffset"]) == (MOVED, "0")
    assert member.commit(1) == -1 and member.next(0) == (0, 1) and member.commit(1) == 1


@every_row(
    "group, at, connection, answer",
    [
        ("g", -1, 2, (MOVED, 0)),  # it comes from before a restart, or out of a file
        ("g", 1, 2, (MOVED, 1)),
        ("other", -1, 2, (MOVED, 3)),  # of no member: as RocketMQ
    ],
)
def test_a_member_beyond_the_end_begins_where_its_group_is_or_at_the_first_message(
    settings: BrokerSettings, group: str, at: int, connection: int, answer: tuple[int, int]
) -> None:
    member = Member(settings)
    member.put(b"a", b"b", b"c")
    if at >= 0:
        member.commit(at, connection=2)
    changes = {"flags": SUBSCRIPTION, "subscription": "*", "consumerGroup": group, "connection": connection}
    assert member.next(9, **changes) == answer


def test_what_is_known_of_a_connection_is_bounded_and_goes_with_it() -> None:
    lives = Lives()
    for queue_id in range(NAMES_PER_CONNECTION_MAX + 1):
        assert lives.begin_of(1, QueueName("g", "orders", queue_id), queue_id, 5, 0) is None
    assert lives.begin_of(1, QueueName("g", "orders", 0), 99_999, 5, 0) is None, "the oldest was forgotten"
    assert lives.begin_of(1, QueueName("g", "orders", 9), 99_999, 5, 0) == 0
    lives.forget(1)
    assert lives.begin_of(1, QueueName("g", "orders", 9), 88_888, 5, 0) is None
