"""No client steps over what a promoted broker has at offsets where its lost master had something else."""

from __future__ import annotations

from dataclasses import replace

from shmq.daemon.broker.settings import BrokerSettings, Parting
from shmq.protocol.body import ONLY_FORWARD
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from tests.broker.groups.test_lives import MOVED, Member
from tests.broker.pulls.test_pulls import COMMIT, SUBSCRIPTION
from tests.tables.rows import every_row

E = 10  # the first offset that the log before may have had otherwise
UNTIL_MS = 120_000


def promoted(settings: BrokerSettings, *, model: str = "CLUSTERING", has: int = 40, beats: bool = True) -> Member:
    """A member whose master is a promoted slave, and has messages already."""
    parting = Parting(1000 * E, UNTIL_MS)  # a record of 1000 bytes for each offset: `MemoryTables.units`
    member = Member(replace(settings, parting=parting), model=model if beats else "", had=None)
    member.put(*[b"new"] * has)
    return member


@every_row(
    "offset, group_at, answer",
    [
        (15, -1, (MOVED, 0)),  # what its group has not settled is not known here
        (E + 1, -1, (MOVED, 0)),
        (E, -1, (0, 40)),  # both logs are the same up to there
        (3, -1, (0, 35)),
        (25, 20, (MOVED, 20)),  # other members have read on here
        (20, 20, (0, 40)),  # it has asked where the group is
        (15, 20, (0, 40)),
        (15, 4, (MOVED, 4)),  # it may hold messages from there on
        (99, -1, (MOVED, 0)),  # beyond the end, too
    ],
)
def test_a_pull_behind_what_is_sure_begins_where_its_group_is(
    settings: BrokerSettings, offset: int, group_at: int, answer: tuple[int, int]
) -> None:
    member = promoted(settings)
    if group_at >= 0:
        member.tables.set_committed(member.tables.offset_put(member.tables.group_put("g"), member.queue), group_at)
    assert member.next(offset) == answer
    if answer[0] == MOVED:
        assert member.next(answer[1]) == (0, min(answer[1] + 32, 40))


def test_a_member_that_keeps_its_own_offsets_is_sent_to_where_the_logs_part(settings: BrokerSettings) -> None:
    member = promoted(settings, model="BROADCASTING")
    assert member.next(15) == (MOVED, E) and member.next(E) == (0, 40)
    reader = {"consumerGroup": "TOOLS", "flags": SUBSCRIPTION, "subscription": "*", "reader": "1"}
    assert member.next(15, **reader) == (MOVED, E) and member.next(15, **reader) == (0, 40), "a seek is its own"


def test_a_member_is_known_before_its_offset_is_judged(settings: BrokerSettings) -> None:
    member = promoted(settings, beats=False)
    assert member.pull(15, flags=0, subscription=None).code == Response.SUBSCRIPTION_NOT_EXIST
    member.beat(group="g")
    assert member.next(15) == (MOVED, 0)


def test_a_member_of_a_new_group_that_begins_at_the_end_gets_what_is_new(settings: BrokerSettings) -> None:
    member = promoted(settings)
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    member.broker.handle(1, Command(code=Request.QUERY_CONSUMER_OFFSET, opaque=4, ext=ext), 0)
    assert member.next(40) == (MOVED, E) and member.next(E) == (0, 40)


def test_each_connection_is_asked_once_and_only_for_some_time(settings: BrokerSettings) -> None:
    member = promoted(settings)
    assert member.next(E) == (0, 40) and member.next(30) == (0, 40)
    assert member.next(15, connection=2) == (MOVED, 0) and member.next(30, connection=2) == (0, 40)
    assert member.next(15, queueId="1") == (MOVED, 0), "a queue of its own"
    assert member.next(15, consumerGroup="h") == (MOVED, 0), "and a group"
    late = promoted(settings)
    assert late.next(15, now_ms=UNTIL_MS) == (0, 40)


def test_a_commit_that_comes_before_any_pull_counts_as_far_as_a_pull_would(settings: BrokerSettings) -> None:
    member = promoted(settings)
    assert member.commit(15) == -1 and member.commit(E) == E and member.commit(E - 3) == E - 3
    assert member.next(15, flags=COMMIT, commitOffset=15) == (MOVED, E - 3) and member.committed() == E - 3
    assert member.commit(15) == E - 3, "a client goes on to commit what it had"
    assert member.next(E - 3) == (0, 39) and member.commit(15) == 15 and member.commit(25) == 25


def test_a_commit_counts_by_what_its_own_group_pulls_and_an_answered_one_as_it_is(
    settings: BrokerSettings,
) -> None:
    member = promoted(settings)
    assert member.next(0, consumerGroup="h") == (0, 32)
    assert member.commit(15) == -1, "another group on the connection proves nothing"
    assert member.commit(15, flag=0) == -1, "a member that leaves is answered, too"
    tool = promoted(settings, beats=False)
    assert tool.commit(15) == -1 and tool.commit(15, flag=0) == 15, "a tool commits for a group without members"
    reader = promoted(settings)
    assert reader.next(0, consumerGroup="TOOLS", flags=SUBSCRIPTION, subscription="*", reader="1") == (0, 32)
    assert reader.commit(15) == 15, "who reads without a group commits for one"


def test_a_commit_of_who_reads_this_log_itself_counts(settings: BrokerSettings) -> None:
    member = promoted(settings)
    assert member.commit(15, **{ONLY_FORWARD: "true"}) == 15


def test_a_member_that_asks_and_reads_a_copy_commits_without_pulls(settings: BrokerSettings) -> None:
    member = promoted(settings)
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    member.broker.handle(2, Command(code=Request.QUERY_CONSUMER_OFFSET, opaque=4, ext=ext), 0)
    assert member.commit(15, connection=2) == 15 and member.commit(25) == 15
    assert member.next(25, connection=2) == (MOVED, 15), "to ask is not to read"


def test_who_only_asks_and_commits_goes_on_when_the_topic_is_made_again(settings: BrokerSettings) -> None:
    member = promoted(settings)
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    member.broker.handle(2, Command(code=Request.QUERY_CONSUMER_OFFSET, opaque=4, ext=ext), 0)
    member.make_again(*[b"newer"] * 20)
    assert member.commit(15, connection=2, now_ms=UNTIL_MS) == 15


def test_what_another_bridge_has_judged_is_judged_once(settings: BrokerSettings) -> None:
    member = promoted(settings)
    member.broker._connections[1].is_of_bridge = True
    assert member.next(15) == (0, 40) and member.commit(25) == 25


def test_a_broker_that_lost_nothing_asks_nothing(settings: BrokerSettings) -> None:
    member = Member(settings)
    member.put(*[b"new"] * 40)
    assert member.next(15) == (0, 40) and member.commit(25, connection=2) == 25
