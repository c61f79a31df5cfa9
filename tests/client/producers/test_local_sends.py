"""Local senders know whether their broker's leader is elected, also while nothing says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.producers import local_sends
from shmq.client.producers.local_sends import LocalSends
from shmq.shm.core import Receipt, receipt_make
from shmq.shm.links import ElectionState, Links, write_links
from shmq.testing import SharedBroker


@pytest.mark.parametrize("election", [None, ElectionState("leading", "1234")])
def test_what_says_that_the_leader_is_elected_may_go_in_a_switch(
    shmq_shared_broker: SharedBroker, tmp_path: Path, election: ElectionState | None
) -> None:
    path = tmp_path / "links.json"
    write_links(path, Links(1, "master", election=election), mode=0o600, gid=-1)
    with shmq_shared_broker.connect() as mq:
        session = mq._local()
        wire: Any = SimpleNamespace(
            store=session.wire.store, wait_durable=False, control=session.wire.control, place=session.wire.place
        )
        wire.place = SimpleNamespace(links_path=path, broker_name="b")
        sends = LocalSends(wire, session.queues, session.leader)
        sends.sender(1.0)
        path.unlink()
        assert sends._is_elected() is (election is not None)
        write_links(path, Links(1, "master", election=ElectionState("following", "1234")), mode=0o600, gid=-1)
        assert sends._is_elected()


class Appended:
    """What a core producer gives, into segments that a renewal replaces in this moment."""

    def __init__(self, wire: Any, renewed: Any) -> None:
        self._wire, self._renewed = wire, renewed
        self.send_batch = self.reserve = None

    def append(self, *_: object, **__: object) -> tuple[int, int, int, int]:
        self._wire.store = self._renewed
        return 7, 100, 1, 200

    def send(self, *_: object, **__: object) -> Receipt:
        return receipt_make("orders", 0, *self.append()[:3], "id")


class Segments:
    """Segments that are asked whether something is on disk."""

    head = {"store_host": b"\x0a\x00\x00\x01\x00\x00\x2a\x9f"}  # noqa: RUF012
    log_end = 200

    def __init__(self) -> None:
        self.waited: list[int] = []

    def wait_durable(self, position: int, timeout: float) -> None:
        self.waited.append(position)


@pytest.mark.parametrize("way", ["packed", "delayed"])
def test_the_segments_that_took_a_message_say_that_it_is_on_disk(
    shmq_shared_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    took, renewed = Segments(), Segments()
    with shmq_shared_broker.connect() as mq:
        session = mq._local()
        wire: Any = SimpleNamespace(
            store=took,
            wait_durable=False,
            counts_on_disk=lambda topic: True,
            control=session.wire.control,
            place=session.wire.place,
            timeout=1.0,
        )
        queues: Any = SimpleNamespace(write_queues=lambda topic: range(1), resolve_open=None, resolve=None)
        monkeypatch.setattr(local_sends, "Producer", lambda *_, special=None, **__: special or Appended(wire, renewed))
        sends = LocalSends(wire, queues, session.leader)
        if way == "packed":
            monkeypatch.setattr(LocalSends, "core_producer", lambda *_, **__: Appended(wire, renewed))
            made: Any = sends._local_sender(1.0, "zlib", None)
            made.send("orders", b"z" * 10_000)
        else:
            special: Any = sends.core_producer(1.0)
            special._delayed = SimpleNamespace(send=lambda send, keep, *_: keep("orders", b"x"))
            special("orders", b"x", {"delay": 3}, False)
    assert (took.waited, renewed.waited) == ([200], [])
