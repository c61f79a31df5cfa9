"""The first page says what `shmq health` says: the verdict, every finding that is not good news, and the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from shmq.testing import Broker
from shmq.tools.console.trends import COST_SHARE, FIELDS, PAUSE_SECONDS, Trends, pause_after
from tests.deadline import eventually
from tests.tools.console.conftest import Site, open_site
from tests.tools.shell import Shell

WAITING = 12_000  # more than the bound of a warning


@pytest.fixture(scope="module")
def behind() -> Iterator[Site]:
    """A broker of its own, at rest: one group that is behind, so that there is something to say."""
    with Broker(tcp=True) as broker, broker.connect() as mq:
        mq.send_batch("orders", [b"order"] * WAITING, queue_id=0)
        with mq.subscribe("orders", group="billing") as subscription:
            for message in subscription.receive(5, wait=60):
                message.ack()
        with open_site(broker.url) as site:
            yield site


def health_of(site: Site) -> dict[str, Any]:
    result = Shell(site.source.url).run("health", "--json")
    document: dict[str, Any] = json.loads(result.out)
    return document


def test_verdict_and_findings_are_those_of_health(behind: Site) -> None:
    document = health_of(behind)
    words = behind.words("/")
    assert document["verdict"] == "WARNING"
    assert "The broker works, and should be looked at" in words
    bad = [finding for finding in document["findings"] if finding["verdict"] != "OK"]
    assert bad
    for finding in bad:
        if finding["check"] == "group":  # others may say ages
            assert f"{finding['what'].partition(', oldest')[0]}" in words
        assert finding["check"] in words and finding["do"] in words
    ours = behind.client.get("/health.json").json()
    assert set(ours) == set(document)
    assert [(each["check"], each["subject"], each["verdict"]) for each in ours["findings"]] == [
        (each["check"], each["subject"], each["verdict"]) for each in document["findings"]
    ]


def test_the_numbers_are_those_of_health(behind: Site) -> None:
    document = health_of(behind)
    words = behind.words("/")
    lag = sum(group["lag"] for group in document["groups"])
    assert lag == WAITING - 5
    assert f"lag of all groups {lag:,}" in words
    assert f"groups {len(document['groups'])}" in words
    assert f"disk {document['disk']['used_percent']} %" in words
    assert f"billing {lag:,}" in words


def test_what_the_broker_keeps_for_itself_is_no_lag_and_no_group() -> None:
    with Broker() as broker, broker.connect() as mq, open_site(broker.url) as site:
        mq.send("orders", b"later", delay=7200)
        eventually(lambda: "CID_RMQ_SYS_" in site.words("/groups", all="1"), "the timer's groups are there")
        words = site.words("/")
        assert all(group["name"].startswith("CID_RMQ_SYS_") for group in health_of(site)["groups"])
        assert "lag of all groups 0" in words and "groups 0 " in words and "CID_RMQ_SYS_" not in words


def test_the_last_hour_is_sampled(behind: Site) -> None:
    columns = behind.client.get("/trends.json").json()
    assert list(columns) == list(FIELDS)
    assert {len(column) for column in columns.values()} != {0}
    assert columns["lag"][-1] == WAITING - 5


def test_an_idle_console_takes_a_bounded_share_of_a_processor(behind: Site) -> None:
    """By construction: what a look costs decides when the next one comes."""
    for cost in (0.001, 0.1, 3.0):
        assert pause_after(cost) >= PAUSE_SECONDS
        assert cost / pause_after(cost) <= COST_SHARE
    trends = Trends(behind.source.look)
    behind.source.forget()
    assert behind.source.look().cost_seconds > 0
    assert trends.sample() >= PAUSE_SECONDS


def test_a_look_is_shared(behind: Site) -> None:
    behind.source.forget()
    first = behind.source.look()
    assert behind.source.look() is first or behind.source.look().snapshot.at - first.snapshot.at >= 1


def test_pages_speak_chinese_where_it_is_wanted(behind: Site) -> None:
    assert "需要关注" in behind.words("/", lang="zh")
    assert 'lang="zh-Hans"' in behind.page("/")  # the cookie
    assert "What should be looked at" in behind.words("/", lang="en")
    assert "需要关注" in behind.client.get("/", headers={"accept-language": "zh-CN", "cookie": ""}).text


def test_colours_are_kept(behind: Site) -> None:
    assert 'data-theme="dark"' in behind.page("/", theme="dark")
    assert 'data-theme="dark"' in behind.page("/")
    assert 'data-theme="system"' in behind.page("/", theme="system")


def test_a_page_that_is_not_there_says_so(behind: Site) -> None:
    assert "Not Found" in behind.words("/no/such/page", 404)


def test_the_broker_may_be_away_and_come_back() -> None:
    with Broker() as broker, open_site(broker.url) as site:
        broker.kill_daemon()
        assert "The broker does not do its work" in site.words("/")
        broker.restart()
        assert "The broker does not do its work" not in site.words("/")
