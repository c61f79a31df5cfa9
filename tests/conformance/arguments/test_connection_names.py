"""A connection's name is seen wherever its client is, and changes nothing else, on this host and over TCP alike."""

import asyncio
import os
import pickle
from collections.abc import Callable

import pytest

import shmq
import shmq.aio
from shmq.client.client_id import name_of, program_name
from shmq.testing import pid_of
from tests.conformance.conftest import Named
from tests.deadline import eventually
from tests.tools.shell import Shell

Connect = Callable[..., shmq.Connection]


def test_operators_see_the_name_in_lists_of_consumers(connect: Connect, named: Named, url: str) -> None:
    topic, group = named("orders"), named("billing")
    mq = connect(name="invoices")
    mq.admin.create_topic(topic, queues=1)
    with mq.subscribe(topic, group=group):
        eventually(lambda: mq.admin.groups[group].members == [mq.client_id], "the member to be known")
        [member] = Shell(url).json("group-show", "group", "show", group)["members"]
        assert member["client"] == mq.client_id and mq.client_id.endswith("@invoices")
        assert "@invoices" in Shell(url).ok("group", "show", group).decode()
    assert mq.client_id in repr(mq)


def test_two_connections_of_one_name_are_two_clients(connect: Connect, named: Named) -> None:
    topic, group = named("orders"), named("billing")
    one, two = connect(name="invoices"), connect(name="invoices")
    one.admin.create_topic(topic, queues=4)
    with one.subscribe(topic, group=group) as first, two.subscribe(topic, group=group) as second:
        members = sorted([one.client_id, two.client_id])
        eventually(lambda: sorted(one.admin.groups[group].members) == members, "both to be known")
        assert members[0] != members[1]
        assert [(pid_of(member), name_of(member)) for member in members] == [(os.getpid(), "invoices")] * 2
        eventually(lambda: len(first.queues) == len(second.queues) == 2, "the queues to be shared")


def test_a_connection_without_a_name_has_the_programs(connect: Connect) -> None:
    assert name_of(connect().client_id) == program_name()
    assert name_of(connect(name=None).client_id) == program_name()


def test_a_pickled_connection_keeps_its_name(connect: Connect) -> None:
    mq = connect(name="invoices")
    with pickle.loads(pickle.dumps(mq)) as copy:
        assert copy.client_id != mq.client_id
        assert name_of(copy.client_id) == "invoices"


def test_a_forked_child_keeps_the_name(connect: Connect) -> None:
    mq = connect(name="invoices")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mq._live()
            os.write(write, mq.client_id.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        client_id = said.read()
    os.waitpid(child, 0)
    assert (name_of(client_id), pid_of(client_id)) == ("invoices", child)


def test_the_name_of_an_async_connection_is_the_same(url: str) -> None:
    async def opened() -> str:
        async with shmq.aio.connect(url, name="invoices") as mq:
            return mq.client_id

    assert name_of(asyncio.run(opened())) == "invoices"


@pytest.mark.parametrize(
    ("name", "what", "cure"),
    [
        (7, "a connection name is a str, not int", "my_connection"),
        (b"invoices", "a connection name is a str, not bytes", "my_connection"),
        ("", "the connection name is empty", "use 1 to 64 of the characters"),
        ("my invoices@2", "the connection name 'my invoices@2' holds ' ' '@'", "use only the characters"),
        ("caf\xe9", r"the connection name 'caf\xe9' holds '\xe9'", "use only the characters"),
        ("x" * 65, "has 65 characters, 64 are allowed", "shorten it by 1"),
    ],
)
def test_what_is_no_name_is_refused_with_its_cure(url: str, name: object, what: str, cure: str) -> None:
    for connect in (shmq.connect, shmq.aio.connect):
        with pytest.raises(shmq.UsageError) as caught:
            connect(url, name=name)  # type: ignore[operator]
        assert what in str(caught.value)
        assert cure in caught.value.hint
