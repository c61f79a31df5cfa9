"""The conflict rule as a table."""

import pytest

from shmq.daemon.broker.groups.subscriptions import GroupAgreement, Interest, Subscription, subscription_of
from shmq.errors import SubscriptionConflict
from shmq.protocol.body import SubscriptionData
from tests.tables.rows import every_row

GRACE_MS = 600_000


def subscription(**topics: str) -> Subscription:
    return subscription_of("g", (SubscriptionData(topic=topic, subString=tags) for topic, tags in topics.items()))


def sql(text: str) -> Subscription:
    return subscription_of("g", [SubscriptionData(topic="t", subString=text, expressionType="SQL92")])


@pytest.mark.parametrize("text", ["*", "", "  ", "||", "a || *"])
def test_everything_has_one_form(text: str) -> None:
    assert subscription(t=text) == {"t": Interest("TAG", frozenset({"*"}))}


def test_order_and_blanks_of_tags_do_not_matter() -> None:
    assert subscription(t="a||b") == subscription(t=" b ||  a ||")


def test_a_client_that_names_no_language_means_tags() -> None:
    assert subscription_of("g", [SubscriptionData(topic="t", subString="a", expressionType=None)]) == subscription(
        t="a"
    )


def test_the_groups_own_retry_topic_is_not_compared_and_that_of_another_is() -> None:
    entries = [SubscriptionData(topic="t"), SubscriptionData(topic="%RETRY%g"), SubscriptionData(topic="%RETRY%h")]
    assert subscription_of("g", entries) == subscription(**{"t": "*", "%RETRY%h": "*"})


@every_row(
    ("wide", "narrow", "expected"),
    [
        (subscription(t="*"), subscription(t="a"), True),
        (subscription(t="a"), subscription(t="*"), False),
        (subscription(t="a||b"), subscription(t="a"), True),
        (subscription(t="a"), subscription(t="b"), False),
        (subscription(t="a||b"), subscription(t="b||c"), False),
        (subscription(t="*"), sql("x > 1"), True),
        (sql("x > 1"), subscription(t="a"), False),
        (sql("x > 1"), sql("x > 1"), True),
        (sql("x > 1"), sql("x > 2"), False),
    ],
)
def test_what_covers_what(wide: Subscription, narrow: Subscription, expected: bool) -> None:
    assert wide["t"].covers(narrow["t"]) is expected


class Group:
    """The members of one group, driven through their agreement as the registry drives it."""

    def __init__(self, *, same_topics: bool = False) -> None:
        self.agreement = GroupAgreement()
        self.same_topics = same_topics
        self.members: dict[str, Subscription] = {}

    def join(self, name: str, wanted: Subscription, now_ms: int = 0) -> bool:
        others = [value for member, value in self.members.items() if member != name]
        try:
            self.agreement.judge("g", wanted, others, now_ms=now_ms, grace_ms=GRACE_MS)
        except SubscriptionConflict:
            return False
        self.members[name] = wanted
        self.agreement.adopt(wanted)
        self.agreement.settle(self.members.values(), now_ms=now_ms, same_topics=self.same_topics)
        return True

    def leave(self, name: str, now_ms: int = 0) -> None:
        del self.members[name]
        self.agreement.settle(self.members.values(), now_ms=now_ms, same_topics=self.same_topics)


OLD = subscription(orders="fruit")
NEW = subscription(orders="fruit || veg")
WIDER = subscription(orders="fruit || veg || meat")
OTHER = subscription(orders="fish")


def test_members_that_agree_are_accepted() -> None:
    group = Group()
    assert group.join("a", OLD) and group.join("b", OLD)
    assert group.agreement.differs_since_ms is None


def test_a_member_that_wants_something_else_is_refused_and_changes_nothing() -> None:
    group = Group()
    group.join("a", OLD)
    assert not group.join("b", OTHER)
    assert group.agreement.current == OLD and group.agreement.differs_since_ms is None


def test_a_narrower_member_is_refused() -> None:
    group = Group()
    group.join("a", NEW)
    assert not group.join("b", OLD)


def test_the_only_member_may_change_its_mind() -> None:
    group = Group()
    group.join("a", OLD)
    assert group.join("a", OTHER)
    assert group.agreement.current == OTHER and group.agreement.differs_since_ms is None


def test_a_rolling_update_passes_within_the_grace_time() -> None:
    group = Group()
    for name in ("a", "b", "c"):
        group.join(name, OLD)
    for step, name in enumerate(("a", "b", "c")):
        group.leave(name, now_ms=step * 1000)
        assert group.join(name, NEW, now_ms=step * 1000)
    assert group.agreement.current == NEW and group.agreement.differs_since_ms is None
    assert not group.join("d", OLD, now_ms=3000)


def test_an_update_may_be_rolled_back_within_the_grace_time() -> None:
    group = Group()
    group.join("a", OLD)
    group.join("b", OLD)
    assert group.join("b", NEW, now_ms=0)
    assert group.join("b", OLD, now_ms=GRACE_MS - 1)
    assert group.agreement.current == OLD and group.agreement.differs_since_ms is None


@pytest.mark.parametrize(("age_ms", "accepted"), [(GRACE_MS - 1, True), (GRACE_MS, False)])
def test_the_grace_time_begins_with_the_first_difference_and_ends(age_ms: int, accepted: bool) -> None:
    group = Group()
    group.join("a", OLD)
    assert group.join("b", NEW, now_ms=1000)
    assert group.join("c", OLD, now_ms=1000 + age_ms) is accepted
    assert group.join("d", WIDER, now_ms=1000 + age_ms) is accepted


def test_after_the_grace_time_the_current_subscription_is_still_accepted() -> None:
    group = Group()
    group.join("a", OLD)
    group.join("b", NEW)
    assert group.join("c", NEW, now_ms=10 * GRACE_MS)


def test_when_all_agree_again_the_next_update_has_its_own_grace_time() -> None:
    group = Group()
    group.join("a", OLD)
    group.join("b", NEW, now_ms=0)
    group.leave("a", now_ms=2 * GRACE_MS)
    assert group.agreement.differs_since_ms is None
    assert group.join("c", WIDER, now_ms=3 * GRACE_MS)


def test_when_the_newest_side_leaves_the_rest_agrees() -> None:
    group = Group()
    group.join("a", OLD)
    group.join("b", NEW)
    group.leave("b")
    assert group.agreement.current == OLD
    assert group.join("c", OLD)


def test_when_all_have_left_anything_goes() -> None:
    group = Group()
    group.join("a", OLD)
    group.leave("a")
    assert group.join("b", OTHER)


def test_the_refusal_names_topics_both_sides_and_a_way_out() -> None:
    group = Group()
    group.join("a", subscription(orders="fruit"))
    with pytest.raises(SubscriptionConflict) as caught:
        group.agreement.judge("g", subscription(orders="veg"), group.members.values(), now_ms=0, grace_ms=GRACE_MS)
    assert str(caught.value) == 'group "g" subscribes differently (the group / this member): orders: "fruit" / "veg"'
    assert "another group name" in caught.value.hint


def test_a_long_disagreement_is_reported_briefly() -> None:
    group = Group()
    group.join("a", subscription(**{f"topic{n:02}": "fruit" for n in range(50)}))
    wanted = subscription(**{f"topic{n:02}": "veg" for n in range(50)})
    with pytest.raises(SubscriptionConflict, match=r"topic00: .*; topic03: .* and 46 more topics(\n|$)") as caught:
        group.agreement.judge("g", wanted, group.members.values(), now_ms=0, grace_ms=GRACE_MS)
    assert "topic04" not in str(caught.value)


def test_the_refusal_of_a_late_update_says_that_another_is_under_way() -> None:
    group = Group()
    group.join("a", OLD)
    group.join("b", NEW)
    with pytest.raises(SubscriptionConflict) as caught:
        group.agreement.judge("g", WIDER, group.members.values(), now_ms=GRACE_MS, grace_ms=GRACE_MS)
    assert "more than 600 s; end the update" in caught.value.hint


TWO = subscription(orders="fruit", refunds="*")


@pytest.mark.parametrize("second", [subscription(refunds="*"), TWO], ids=["disjoint", "more"])
def test_members_that_read_different_topics_agree(second: Subscription) -> None:
    group = Group()
    assert group.join("a", OLD) and group.join("b", second)
    assert group.agreement.differs_since_ms is None
    assert group.agreement.current == TWO
    # Neither grace time nor order matters: what a member reads besides is its own affair.
    assert group.join("c", OLD, now_ms=10 * GRACE_MS) and group.join("b", OLD, now_ms=10 * GRACE_MS)


def test_other_tags_are_refused_whatever_else_the_member_reads() -> None:
    group = Group()
    group.join("a", TWO)
    with pytest.raises(SubscriptionConflict, match=r'orders: "fruit" / "fish"(\n|$)'):
        wanted = subscription(orders="fish", refunds="*", invoices="*")
        group.agreement.judge("g", wanted, group.members.values(), now_ms=0, grace_ms=GRACE_MS)


def test_each_topic_has_its_own_grace_time() -> None:
    group = Group()
    group.join("a", TWO)
    group.join("b", NEW, now_ms=0)
    group.join("c", subscription(refunds="*"), now_ms=GRACE_MS)
    assert not group.join("d", WIDER, now_ms=GRACE_MS)
    group.join("e", subscription(bills="a"), now_ms=GRACE_MS)
    assert group.join("f", subscription(bills="a || b"), now_ms=GRACE_MS)
    assert group.agreement.differs_since_ms == 0


def test_a_topic_that_no_member_reads_any_more_is_forgotten() -> None:
    group = Group()
    group.join("a", TWO)
    group.join("b", OLD)
    group.leave("a")
    assert group.agreement.current == OLD
    assert group.join("c", subscription(refunds="late"))


def test_where_all_must_read_the_same_topics_different_ones_are_noticed_and_not_refused() -> None:
    group = Group(same_topics=True)
    group.join("a", OLD)
    assert group.join("b", TWO, now_ms=5) and group.join("c", subscription(bills="*"), now_ms=6)
    assert group.agreement.differs_since_ms == 5
    group.leave("c", now_ms=7)
    assert group.agreement.differs_since_ms == 5
    group.leave("b", now_ms=8)
    assert group.agreement.differs_since_ms is None
