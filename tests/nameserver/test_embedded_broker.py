"""The broker beside the name server: what is announced of it, and when."""

from __future__ import annotations

from shmq.addresses import Address
from shmq.daemon.logic.effects import Reply, Report
from shmq.daemon.nameserver.embedded_broker import Embedded, TopicSource
from shmq.daemon.nameserver.nameserver import NameServer
from shmq.daemon.nameserver.registration import QueueEntry
from shmq.daemon.nameserver.settings import NameServerSettings, with_room_for
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.shm.segment import SegmentSizes
from tests.broker.conftest import MemoryTables


def new_source(tables: MemoryTables, *, default_queues: int = 8) -> TopicSource:
    return TopicSource(tables, cluster="C", broker_name="default", default_queues=default_queues)


def put(tables: MemoryTables, name: str, queues: int = 4) -> None:
    tables.topic_put(name, read_queues=queues, write_queues=queues, perm=6, flags=1, kind=0)


def test_every_topic_is_announced_and_the_default_one_for_producers_of_new_topics() -> None:
    tables = MemoryTables()
    put(tables, "orders")
    assert new_source(tables).topics() == {"orders": QueueEntry(4, 4, 6, 1), "TBW102": QueueEntry(8, 8, 7, 0)}
    assert new_source(tables, default_queues=0).topics().keys() == {"orders"}
    put(tables, "TBW102", queues=2)
    assert new_source(tables).topics()["TBW102"] == QueueEntry(2, 2, 6, 1)


def test_a_change_is_in_the_very_next_answer_and_a_refused_one_is_reported_once() -> None:
    tables = MemoryTables()
    server = NameServer(NameServerSettings(topics_max=2), embedded=Embedded(new_source(tables), "", 10911))
    server.connected(1, None, 0, remote=Address("127.0.0.1", 1), local=Address("127.0.0.1", 9876))

    def ask(topic: str) -> tuple[int, int]:
        """The reply's code and the number of reports behind it."""
        reply, *more = server.handle(1, Command(Request.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}), 0)
        assert isinstance(reply, Reply) and all(isinstance(effect, Report) for effect in more)
        return reply.command.code, len(more)

    assert ask("orders") == (Response.TOPIC_NOT_EXIST, 0)
    put(tables, "orders")
    assert ask("orders") == (Response.SUCCESS, 0)
    put(tables, "bills")
    assert ask("bills") == (Response.TOPIC_NOT_EXIST, 1)
    assert ask("orders") == (Response.SUCCESS, 0)
    tables.topic_delete("orders")
    assert (ask("orders"), ask("bills")) == ((Response.TOPIC_NOT_EXIST, 0), (Response.SUCCESS, 0))


def test_beside_a_broker_there_is_room_for_all_its_topics_and_for_those_of_others() -> None:
    usual = NameServerSettings()
    settings = with_room_for(1 << 20)
    assert settings.topics_max - usual.topics_max == settings.routes_max - usual.routes_max == 1 << 20
    assert usual.topics_max > SegmentSizes().topic_max  # of a broker registered elsewhere
