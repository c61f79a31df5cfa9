"""The entries of deleted topics are used again while the broker runs, whatever their names, and numbers never."""

from collections.abc import Callable
from typing import Any

import pytest

from shmq.shm.core import BrokerTables, CoreError, Producer
from shmq.store.lineage.cutting import wish_cut
from tests.keeper.conftest import SMALL, Running, StartKeeper

Eventually = Callable[..., Any]
TOPICS_MAX = SMALL["topic_max"]


def deleted(keeper: Running) -> list[str]:
    """Those whose entries no other topic can have yet."""
    return [topic["name"] for topic in keeper.store.topics(True) if topic["state"] != 1]


def put(keeper: Running, name: str) -> int:
    return BrokerTables(keeper.store).topic_put(name, read_queues=2, write_queues=2)


def fill(keeper: Running, eventually: Eventually, last: str) -> int:
    """Give every entry a name; `last` is deleted again, and is the number that is returned."""
    for number in range(len(keeper.store.topics()), TOPICS_MAX - 1):
        put(keeper, f"stays-{number}")
    number = put(keeper, last)
    with pytest.raises(CoreError):
        put(keeper, "no-room")
    BrokerTables(keeper.store).topic_delete(last)
    eventually(lambda: not deleted(keeper))
    return number


def test_more_topics_of_ever_new_names_come_and_go_than_the_table_has_entries(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    keeper = start_keeper()
    stays = put(keeper, "stays")
    keeper.send("stays", b"first")
    numbers = set()
    for round_ in range(5):
        names = [f"comes-{round_}-{number}" for number in range(TOPICS_MAX - 1)]
        for name in names:
            numbers.add(put(keeper, name))
        assert {topic["name"] for topic in keeper.store.topics()} == {"stays", *names}
        keeper.send(names[0], b"something")
        for name in names:
            BrokerTables(keeper.store).topic_delete(name)
            assert keeper.store.topic_find(name) == -1
        eventually(lambda: not deleted(keeper))
    assert len(numbers) == 5 * (TOPICS_MAX - 1), "a number is never another name's"
    assert keeper.store.topic_find("stays") == stays and keeper.store.topic(stays)["name"] == "stays"


def test_the_number_of_a_topic_whose_entry_another_has_belongs_to_none(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    keeper = start_keeper()
    old = fill(keeper, eventually, "old")
    new = put(keeper, "new")
    assert old != new and (old ^ new) % TOPICS_MAX == 0
    with pytest.raises(CoreError, match="topic index"):
        keeper.store.topic(old)
    with pytest.raises(CoreError, match="topic index"):
        keeper.store.queue_index(old, 0)
    assert keeper.store.topic_find("old") == -1 and keeper.store.topic_find("new") == new


def test_a_producer_that_knew_the_old_topic_asks_again(start_keeper: StartKeeper, eventually: Eventually) -> None:
    keeper = start_keeper()
    asked: list[str] = []

    def resolve(topic: str) -> int:
        asked.append(topic)
        return keeper.store.topic_find(topic)

    producer = Producer(keeper.store, resolve=resolve)
    put(keeper, "old")
    producer.send("old", b"1")
    producer.send("old", b"2")
    assert asked == ["old"]
    BrokerTables(keeper.store).topic_delete("old")
    eventually(lambda: not deleted(keeper))
    fill(keeper, eventually, "between")
    new = put(keeper, "new")
    with pytest.raises(CoreError):
        producer.send("old", b"3")
    assert asked == ["old", "old"]
    assert [keeper.store.queue(queue)[1] for queue in keeper.store.topic(new)["queues"]] == [0, 0]


def test_an_entry_stays_its_topics_while_the_keeper_is_stopped(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    """Its tombstone and its files come first: without them the log would bring the topic back."""
    keeper = start_keeper()
    number = put(keeper, "comes-and-goes")
    keeper.send("comes-and-goes", b"x")
    keeper.halt()
    BrokerTables(keeper.store).topic_delete("comes-and-goes")
    assert deleted(keeper) == ["comes-and-goes"]
    assert not keeper.keeper._keeper_store.topic_free(number, keeper.store.topic(number)["version"]), "queues are open"
    keeper.abandon()
    keeper = start_keeper()
    eventually(lambda: not deleted(keeper))
    assert "comes-and-goes" in keeper.keeper._catalog._tables.tables.deleted


def test_a_topic_that_was_made_anew_is_not_freed(start_keeper: StartKeeper) -> None:
    keeper = start_keeper()
    number = put(keeper, "comes-and-goes")
    keeper.halt()
    BrokerTables(keeper.store).topic_delete("comes-and-goes")
    version = keeper.store.topic(number)["version"]
    assert put(keeper, "comes-and-goes") == number
    assert keeper.keeper._keeper_store.topic_free(number, version), "nothing to be done"
    assert keeper.store.topic_find("comes-and-goes") == number
    keeper.abandon()


def test_the_tombstone_of_a_second_life_lies_behind_it(start_keeper: StartKeeper, eventually: Eventually) -> None:
    """It was that of the first one, and the log brought the second one back after a crash."""
    keeper = start_keeper()
    tables = BrokerTables(keeper.store)
    put(keeper, "twice")
    keeper.send("twice", b"first life")
    tables.topic_delete("twice")
    eventually(lambda: not deleted(keeper))
    keeper.halt()
    put(keeper, "twice")
    second = keeper.send("twice", b"second life").log_position
    tables.topic_delete("twice")
    keeper.abandon()
    keeper = start_keeper()
    eventually(lambda: not deleted(keeper))
    assert keeper.keeper._catalog._tables.tables.deleted["twice"] > second


def test_a_topic_that_was_deleted_in_what_is_cut_off_lives(start_keeper: StartKeeper, eventually: Eventually) -> None:
    """Its tombstone went on to hide the records that the new master has, too."""
    keeper = start_keeper()
    put(keeper, "lives")
    keeper.send("lives", b"of both")
    position = keeper.store.log_end
    keeper.send("other", b"of the old master alone")
    BrokerTables(keeper.store).topic_delete("lives")
    eventually(lambda: not deleted(keeper))
    wish_cut(keeper.attached.files.layout, position, 1, end=position + (1 << 30))
    keeper.end()
    keeper = start_keeper(role="slave", master="127.0.0.1:1", master_ha="127.0.0.1:2")
    assert keeper.store.log_end == position
    assert keeper.store.queue(keeper.queue_index("lives"))[:2] == (0, 1)
