"""Segments that are replaced between the broker's answer and their mapping, and such as are somewhere else."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import shmq
from shmq.client.wire_shm import wire as module
from shmq.errors import SegmentError
from shmq.testing import Broker


def test_segments_that_were_replaced_meanwhile_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    really, failed = module.map_segments, []
    with Broker() as broker:

        def replaced(attachment: Any, *, alive: bool) -> Any:
            if not failed:
                failed.append(attachment)
                os.kill(broker.processes["bridge"].pid, signal.SIGKILL)  # that of the segments of before
                raise SegmentError("they are gone")
            return really(attachment, alive=alive)

        monkeypatch.setattr(module, "map_segments", replaced)
        monkeypatch.setattr(module, "are_here", lambda instance: False)
        monkeypatch.setattr(module, "_REPLACED_SECONDS", 60.0)
        with broker.connect() as mq:
            mq.send("orders", b"x")
        assert failed


def test_segments_that_are_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise SegmentError("they are not here")

    with Broker() as broker:
        monkeypatch.setattr(module, "open_store", refused)
        monkeypatch.setattr(module, "are_here", lambda instance: False)
        monkeypatch.setattr(module, "_REPLACED_SECONDS", 0.01)
        with pytest.raises(shmq.ForeignNamespace, match="not in the shared memory"), broker.connect() as mq:
            mq.send("orders", b"x")
