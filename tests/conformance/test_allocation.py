"""How members of a group share the queues: every rule, on both transports, to the same shares."""

from collections.abc import Callable

import pytest

import shmq

Named = Callable[[str], str]
Eventually = Callable[..., object]


@pytest.fixture
def shares(url: str, topic: str, named: Named, eventually: Eventually) -> Callable[[str], list[list[int]]]:
    """Call it with a rule: the queues of two members, in the order of their ids, once both know of each other."""

    def of(rule: str) -> list[list[int]]:
        place = f"{url}?allocation={rule}"
        group = named("group")
        with (
            shmq.connect(place, timeout=60.0) as one,
            shmq.connect(place, timeout=60.0) as two,
            one.subscribe(topic, group=group) as first,
            two.subscribe(topic, group=group) as second,
        ):
            found = {one.client_id: first, two.client_id: second}
            low, high = (found[name] for name in sorted(found))
            eventually(lambda: low.queues and high.queues and len(low.queues) + len(high.queues) == 4)
            return [low.queues, high.queues]

    return of


@pytest.mark.parametrize(("rule", "expected"), [("average", [[0, 1], [2, 3]]), ("circle", [[0, 2], [1, 3]])])
def test_queues_are_shared_by_the_rule_that_is_named(
    shares: Callable[[str], list[list[int]]], rule: str, expected: list[list[int]]
) -> None:
    assert shares(rule) == expected


def test_a_configured_share_is_exactly_that(url: str, topic: str, named: Named, eventually: Eventually) -> None:
    place = f"{url}?allocation=config:1,3"
    with shmq.connect(place, timeout=60.0) as mq, mq.subscribe(topic, group=named("group")) as consumer:
        eventually(lambda: consumer.queues == [1, 3])


def test_a_rule_that_does_not_exist_is_refused(url: str) -> None:
    with pytest.raises(shmq.UsageError, match="allocation"):
        shmq.connect(f"{url}?allocation=lottery", timeout=60.0)
