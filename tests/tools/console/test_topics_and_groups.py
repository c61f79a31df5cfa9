"""Lists and pages of topics and groups: their numbers are those of the commands, long lists come in parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from shmq.testing import Broker, SharedBroker
from shmq.tools.console.listing import ROWS_MAX
from tests.deadline import eventually
from tests.tools.console.conftest import Site, open_site
from tests.tools.shell import Shell

TOPICS = 130  # more than one part of the list holds


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    """A broker with many topics, and a group in the middle of one of them."""
    with Broker(tcp=True) as broker, broker.connect() as mq:
        for number in range(TOPICS):
            mq.admin.create_topic(f"topic-{number:03d}", queues=1)
        mq.admin.create_topic("orders", queues=4)
        for number in range(40):
            mq.send("orders", b"order %d" % number, queue_id=number % 4, tag="fruit")
        with mq.subscribe("orders", group="billing", tags="fruit") as subscription:
            for message in subscription.receive(15, wait=60):
                message.ack()
            with open_site(broker.url) as site:
                eventually(lambda: "members 1" in site.words("/groups/billing"), "the roster names the member")
                yield site


def told(site: Site, *words: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(Shell(site.source.url).ok(*words, "--json"))
    return document


def test_the_list_of_topics_has_the_numbers_of_the_command(shop: Site) -> None:
    words = shop.words("/topics", q="orders")
    assert "orders normal 4 40" in words
    assert re.search(r"orders normal 4 40 \S+ \S+ \S+ \S+ 1 ", words)
    assert "topic-001" not in words


def test_a_long_list_comes_in_parts(shop: Site) -> None:
    first, second = shop.page("/topics"), shop.page("/topics", page=2)
    assert f"1 to {ROWS_MAX} of {TOPICS + 1}" in first and f"{ROWS_MAX + 1} to {TOPICS + 1} of" in second
    names = [re.findall(r'href="/topics/([\w-]+)"', page) for page in (first, second)]
    assert len(names[0]) == ROWS_MAX and sorted(names[0] + names[1]) == names[0] + names[1]
    assert "101 to 131" in shop.page("/topics", page=999) and "1 to 100" in shop.page("/topics", page="no-number")


def test_a_list_is_sorted_by_each_of_its_columns(shop: Site) -> None:
    for path in ("/topics", "/groups"):
        for link in re.findall(r'<th scope="col"[^>]*><a href="([^"]+)"', shop.page(path)):
            assert shop.page(link.replace("&amp;", "&"))
    first = re.findall(r'href="/topics/([\w-]+)"', shop.page("/topics", sort="-messages"))[0]
    assert first == "orders"


def test_what_the_broker_keeps_for_itself_is_shown_where_it_is_wanted(shop: Site) -> None:
    assert "SCHEDULE_TOPIC_XXXX" not in shop.page("/topics")
    assert "SCHEDULE_TOPIC_XXXX" in shop.page("/topics", all=1, q="SCHEDULE")
    assert shop.page("/topics/%25RETRY%25billing")


def test_one_topic_has_its_queues_and_readers(shop: Site) -> None:
    words = shop.words("/topics/orders")
    document = told(shop, "topic", "show", "orders")
    for queue in document["queue_list"]:  # type: ignore[attr-defined]
        assert f"{queue['queue']} {queue['offset_min']} {queue['offset_max']} {queue['messages']} " in words
    assert "billing 25 0 1 fruit" in words


def test_one_group_has_its_lag_and_members(shop: Site) -> None:
    words = shop.words("/groups/billing")
    document = told(shop, "group", "show", "billing")
    assert document["lag"] == 25 and "lag 25" in words
    for queue in document["queues"]:  # type: ignore[attr-defined]
        if queue["topic"] == "orders":
            assert f"orders {queue['queue']} {queue['offset']} {queue['offset_max']} {queue['lag']} " in words
    (member,) = document["members"]  # type: ignore[misc]
    assert member["client"] in words and f"{member['pid']} orders fruit" in words
    assert "billing 1 " in shop.words("/groups")


def test_members_that_disagree_are_shown(site: Site, shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("fruits"), shmq_shared_broker.named("differ")
    with shmq_shared_broker.connect() as first, shmq_shared_broker.connect() as second:
        first.send(topic, b"x", tag="apple")
        first.subscribe(topic, group=group, tags="apple")
        second.subscribe(topic, group=group, tags="apple || pear")  # a rolling update is under way
        eventually(lambda: "conflict" in site.words("/groups", q=group).partition(group)[2][:20])
        words = site.words(f"/groups/{group}")
        assert "conflict" in words and "same subscription" in words


@pytest.mark.parametrize("path", ["/topics/no-such", "/groups/no-such", "/topics/..%2f..", "/topics/%3Cscript%3E"])
def test_what_does_not_exist_is_said_with_a_hint(shop: Site, path: str) -> None:
    page = shop.page(path, 404)
    assert "This did not work" in page and "<script>" not in page.replace('<script src="/static', "")


def test_every_link_of_the_pages_leads_somewhere(shop: Site, links_of: Callable[[str], set[str]]) -> None:
    seen: set[str] = set()
    for path in ("/", "/topics?q=orders", "/groups", "/topics/orders", "/groups/billing"):
        for link in links_of(shop.page(path)) - seen:
            seen.add(link)
            assert shop.client.get(link, follow_redirects=True).status_code == 200, (path, link)
    assert len(seen) > 30
