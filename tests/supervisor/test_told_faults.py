"""A fault that a live broker tells of fails the test that it served, whatever the test looked at itself."""

from __future__ import annotations

import pytest

from shmq.testing import Broker
from tests.supervisor.told_faults import MARKER, look_at, take_found

TEXT = '2026-11-27T12:00:00.000Z bridge internal.error where="a wake-up" trace="…"'
JSON = '{"time": "2026-11-27T12:00:00.000Z", "process": "bridge", "event": "internal.error", "where": "a wake-up"}'
OTHER = "2026-11-27T12:00:00.000Z bridge library.message text=internal.error"


@pytest.mark.internal_error  # what this one finds is not to fail it
def test_the_log_of_a_broker_is_read_once_and_before_it_is_gone(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker(MARKER) is not None
    with Broker() as broker:
        log = broker.directory / "broker.log"
        for line in (OTHER, TEXT, JSON):
            with log.open("a") as file:
                file.write(f"{line}\n")
        assert take_found() == [TEXT, JSON]
        assert take_found() == []
        with log.open("a") as file:
            file.write(f"{TEXT}\n")
    assert take_found() == [TEXT]


def test_what_others_logged_is_looked_at_too() -> None:
    look_at(f"{OTHER}\n{TEXT}\n")
    assert take_found() == [TEXT]


def test_every_test_is_looked_behind(request: pytest.FixtureRequest) -> None:
    assert "told_faults" in request.fixturenames
