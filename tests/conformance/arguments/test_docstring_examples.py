"""What the documentation of a call shows is run: every example of the public names, through shared memory and TCP.

An example may use what programs have by then: `mq`, `p` (a producer), `message`, `slot`, `Order`, `body`, `db`.
"""

import ast
import asyncio
import contextlib
import doctest
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.bindings import _core
from tests.conformance.conftest import PATIENCE, Named
from tests.deadline import eventually


@dataclass
class Order:
    """What the examples send."""

    number: str
    count: int


class Database:
    """Takes what the examples store."""

    def insert_order(self, number: str, *, tx_id: str) -> None:
        assert number and tx_id


LOCAL = {"shmq.Connection.arrow": "duckdb"}
"""Examples that need shared memory, and the library they show."""


def _calls(thing: type) -> dict[str, object]:
    """What a class of ours has, inherited or its own; what asyncio's twin only awaits has the example of the call."""
    ours = [each for each in reversed(thing.__mro__) if each.__module__.startswith("shmq")]
    calls = {name: call for each in ours for name, call in vars(each).items()}
    return {
        name: call for name, call in calls.items() if not hasattr(call, "__wrapped__") or "aio" not in thing.__module__
    }


def _documented() -> Iterator[tuple[str, object]]:
    for package in (shmq, shmq.aio):
        for name in package.__all__:
            thing = getattr(package, name)
            yield f"{package.__name__}.{name}", thing
            if inspect.isclass(thing) and not issubclass(thing, BaseException):
                yield from ((f"{package.__name__}.{name}.{each}", call) for each, call in _calls(thing).items())
    yield from ((f"{name}.{each}", call) for name in ("Producer",) for each, call in vars(getattr(_core, name)).items())


def _examples() -> dict[str, str]:
    """Return the source of the examples of each public name that has some."""
    found = {}
    for name, thing in _documented():
        text = getattr(thing, "__doc__", None) or ""
        if "._" not in name and ">>>" in text:
            found[name] = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
    return found


EXAMPLES = _examples()


@pytest.fixture
def names(connect: Callable[..., shmq.Connection], url: str, named: Named) -> Iterator[dict[str, Any]]:
    """What an example may use."""
    mq = connect()
    with contextlib.ExitStack() as things:
        mq.send(named("orders"), b'{"number": "o-41", "count": 1}')
        consumer = things.enter_context(mq.subscribe(named("orders"), group=named("examples"), start="begin"))
        [message] = consumer.receive(1, PATIENCE)
        yield {
            "mq": mq,
            "p": things.enter_context(mq.producer(group="shop")),
            "message": message,
            "body": b"3 apples",
            "db": Database(),
            "Order": Order,
            "connect": lambda: shmq.connect(url),
        }


def _run(source: str, names: dict[str, Any]) -> None:
    code = compile(source, "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_runs_as_it_stands(name: str, names: dict[str, Any], url: str, named: Named) -> None:
    if name in LOCAL:
        pytest.importorskip(LOCAL[name])
        if not url.startswith("shmq:"):
            pytest.skip("it reads shared memory")
    if name.startswith("shmq.aio."):
        names["connect"] = lambda: shmq.aio.connect(url)
    topic, group = named("orders"), named("billing")
    source = EXAMPLES[name].replace('"orders"', repr(topic)).replace('"billing"', repr(group))
    mq, first = names["mq"], names["message"]
    if "for message in" not in source:
        with mq.reserve("frames", 3) if name.startswith("shmq.Slot.") else contextlib.nullcontext() as names["slot"]:
            _run(source, names)
        return
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(_run, source, names)  # it waits for further messages until the connection is closed
        eventually(lambda: reading.done() or group in mq.admin.groups, "the example reads")
        eventually(lambda: reading.done() or _came(mq, topic, names, first), "the example gets a message")
        mq.close()
        reading.result(PATIENCE)


def _came(mq: shmq.Connection, topic: str, names: dict[str, Any], first: object) -> bool:
    mq.send(topic, b'{"number": "o-42", "count": 3}')
    return names["message"] is not first


def test_the_names_that_users_meet_first_have_examples() -> None:
    calls = {"Producer.send", "Producer.send_oneway", "Producer.send_batch", "Producer.reserve"}
    messages = {f"shmq.Message.{call}" for call in ("ack", "nack", "extend", "verify")}
    made = {"shmq.connect", "shmq.Producer", "shmq.Subscription", "shmq.PullConsumer", "shmq.Topic", "shmq.Transaction"}
    assert calls | messages | made | {"shmq.aio.connect", "shmq.Slot.commit", "shmq.Slot.abort"} <= EXAMPLES.keys()
