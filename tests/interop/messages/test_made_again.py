"""A topic that is deleted and made again under stock consumers: each message of the new one reaches all of them.

The new one gets as many messages as the former had, and then more: a stock broker would hand out none of the first.
Java's client drops a queue whose offset was moved for 10 s.
"""

from collections.abc import Callable

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.java import JavaClient

OLD, NEW, MORE = ([f"{stem} {number}" for number in range(8)] for stem in ("old", "new", "more"))


@pytest.mark.parametrize("bridges", [1, 3])
@pytest.mark.parametrize("java_version", ["4", "5"])
def test_java_consumers_of_each_kind_get_all_of_the_new_topic(
    java_client: JavaClient, named: Callable[[str], str], bridges: int
) -> None:
    topic = named("orders")
    kinds: dict[str, dict[str, bool]] = {"push": {}, "orderly": {"orderly": True}, "broadcast": {"broadcast": True}}
    names = {kind: named(kind) for kind in kinds}

    def received(kind: str) -> set[str]:
        return {str(event["body"]) for event in java_client.events if event.get("consumer") == names[kind]}

    with Broker(tcp=True, bridges=bridges, timeout=90.0) as broker, shmq.connect(broker.url) as mq:
        mq.admin.create_topic(topic, queues=2)
        for kind, options in kinds.items():
            java_client.do(
                "push", name=names[kind], group=names[kind], nameServer=broker.name_server, topic=topic, **options
            )
        for bodies in (OLD, NEW, MORE):
            if bodies is NEW:
                mq.admin.delete_topic(topic)
                mq.admin.create_topic(topic, queues=2)
            for body in bodies:
                mq.send(topic, body.encode())
            eventually(lambda bodies=bodies: all(received(kind) >= set(bodies) for kind in kinds), f"all of {bodies}")
        for name in names.values():
            java_client.do("push-close", name=name)
