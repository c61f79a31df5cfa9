"""A store that is closed while a call is inside: the call ends in mapped segments, later ones are refused."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, LiveStore, raises_status, until

LONG = bytes(300_000)


class Closing:
    """Arguments whose code closes a store: what a call runs between two looks at the segments."""

    def __init__(self, store: _core.Store) -> None:
        self._store = store

    def number(self, value: int) -> Any:
        close = self._store.close

        class Number:
            def __index__(self) -> int:
                close()
                return value

            def __repr__(self) -> str:
                return str(value)

        return Number()

    def each(self, *values: object) -> Iterator[Any]:
        self._store.close()
        yield from values


def sends(producer: _core.Producer, closing: Closing) -> dict[str, Callable[[], object]]:
    """Each call of a producer, with an argument whose code closes the store."""
    return {
        "send, keys": lambda: producer.send("orders", b"x", keys=closing.each("a", "b")),
        "send, a long body": lambda: producer.send("orders", LONG, keys=closing.each("a", "b")),
        "send, queue": lambda: producer.send("orders", b"x", queue_id=closing.number(1)),
        "send, flag": lambda: producer.send("orders", b"x", flag=closing.number(1)),
        "send, wrong": lambda: producer.send("orders", b"x", queue_id=closing.number(77)),
        "send_oneway": lambda: producer.send_oneway("orders", b"x", keys=closing.each("a", "b")),
        "send_batch": lambda: producer.send_batch("orders", closing.each(b"a", b"b")),
        "send_batch, keys": lambda: producer.send_batch("orders", [b"a", b"b"], keys=closing.each("a", "b")),
        "append_batch": lambda: producer.append_batch("orders", 0, closing.each((b"a", b"", 0), (b"b", b"", 0))),
        "reserve": lambda: producer.reserve("orders", closing.number(10)),
        "a new topic": lambda: producer.send("bills", b"x"),
    }


def of_segments() -> list[str]:
    """The mappings of segments of this process."""
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "shmq-binding" in line and "memfd" in line
    ]


def test_a_send_whose_arguments_close_the_store_ends_in_mapped_segments() -> None:
    found: dict[str, str] = {}
    names = list(sends(None, None))  # type: ignore[arg-type]
    with LiveStore(files=4) as live:
        live.topic()
        live.topic("bills")
        for name in names:
            before = len(of_segments())
            store = live.attach(writable=True)
            closing = Closing(store)

            def resolve(topic: str, store: _core.Store = store) -> int:
                index = store.topic_find(topic)
                if topic == "bills":
                    store.close()
                return index

            producer = _core.Producer(store, resolve=resolve)
            producer.send("orders", b"first")
            try:
                found[name] = type(sends(producer, closing)[name]()).__name__
            except (_core.CoreError, TypeError) as error:
                found[name] = str(error.args[-1]).splitlines()[0]  # without a hint
            with raises_status(_core.BAD_ARGUMENT, "closed"):
                producer.send("orders", b"later")
            gc.collect()
            found[name] += f", {len(of_segments()) - before} mappings"
        stored = [message.body for message in live.reader().poll(max=100)]
    closed = "the connection to the store is closed, 0 mappings"
    assert found == {
        "send, keys": "Receipt, 0 mappings",
        "send, a long body": "Receipt, 0 mappings",
        "send, queue": "Receipt, 0 mappings",
        "send, flag": "Receipt, 0 mappings",
        "send, wrong": "topic 'orders' has 4 write queues, so queue_id is 0 to 3, not 77, 0 mappings",
        "send_oneway": "NoneType, 0 mappings",
        "send_batch": closed,
        "send_batch, keys": closed,
        "append_batch": closed,
        "reserve": closed,
        "a new topic": closed,
    }
    assert b"later" not in stored
    assert stored.count(b"x") == 4


def waiting_for_room(live: LiveStore, store: _core.Store, timeout: float) -> tuple[threading.Thread, list[object]]:
    """A thread inside a send that waits for the keeper to make a log file."""
    producer, ends = live.producer(store), list[object]()

    def send() -> None:
        try:
            ends.append(producer.send("orders", b"x" * 1000, timeout=timeout))
        except _core.CoreError as error:
            ends.append(error.args[0])

    live.keeper.keep_flushed(0)
    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: live.keeper.keep_flushed(0.01)[0])  # it rang for one
    return thread, ends


def test_a_send_that_waits_while_its_store_is_closed_is_stored_or_says_why_not() -> None:
    ends: list[object] = []
    for makes_room in (True, False):
        with LiveStore() as live:
            live.topic()
            live.keeper.set_allocated_end(0)
            before, store = len(of_segments()), live.attach(writable=True)
            thread, end = waiting_for_room(live, store, 60.0 if makes_room else 0.3)
            store.close()
            if makes_room:
                live.keeper.set_allocated_end(FILE_BYTES)
            thread.join()
            ends.append(end[0] if isinstance(end[0], int) else type(end[0]).__name__)
            assert len(of_segments()) == before
    assert ends == ["Receipt", _core.LOG_FULL]


def test_a_reader_whose_owner_closes_the_store_while_it_waits_ends() -> None:
    with LiveStore() as live:
        live.topic()
        before, store = len(of_segments()), live.attach(writable=True)
        live.use_client(store)

        class Owner:
            def _idle(self) -> bool:
                store.close()
                return False

        reader = live.reader(store=store, owner=Owner(), slice=0.001)
        with raises_status(_core.BAD_ARGUMENT, "the connection to the store is closed"):
            next(reader)
        assert len(of_segments()) == before


def test_segments_stay_mapped_for_an_open_slot_and_its_claim_is_given_back() -> None:
    with LiveStore() as live:
        live.topic()
        before, store = len(of_segments()), live.attach(writable=True)
        slot = live.producer(store).reserve("orders", 10)
        store.close()
        assert len(of_segments()) > before
        with raises_status(_core.BAD_ARGUMENT, "closed"):
            slot.commit()
        slot.abort()
        assert live.figures.stats()["claim_state"] == 0
        live.producer().send("orders", b"x", timeout=0)
        del slot
        gc.collect()
        assert len(of_segments()) == before


def test_who_closes_segments_that_were_given_up_leaves_that_as_the_reason() -> None:
    with LiveStore() as live:
        live.topic()
        store = live.attach(writable=True)
        producer, reader, figures = live.producer(store), live.reader(store=store), _core.StoreFigures(store)
        live.keeper.set_retired()
        store.close()
        store.close()
        for call in (lambda: producer.send("orders", b"x"), reader.poll, figures.stats, lambda: store.log_end):
            with raises_status(_core.RETIRED, "given up"):
                call()


def test_a_closed_store_holds_no_descriptor_whatever_still_refers_to_it() -> None:
    def descriptors() -> int:
        return sum("memfd" in os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())

    with LiveStore() as live:
        live.topic()
        live.producer().send("orders", b"x")
        before, mapped = descriptors(), len(of_segments())
        store = live.attach(writable=True)
        producer, reader = live.producer(store), live.reader(store=store)
        (message,) = reader.poll()
        store.close()
        assert (descriptors(), len(of_segments())) == (before, mapped)
        message.ack()
        assert message.settled and message.body == b"x" and bytes(message.view) == b"x"
        del producer
