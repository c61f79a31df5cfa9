"""Fixtures of the shm tests: brokers with names of their own, and proof that nothing stays behind."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.shm.segment import SHM_DIRECTORY, SegmentSizes

SMALL = SegmentSizes(
    file_bytes=1 << 20, topic_max=64, queue_max=256, frame_max=4096, client_max=16, group_max=16, offset_max=256
)


@pytest.fixture
def sizes() -> SegmentSizes:
    """Segments of a few MiB."""
    return SMALL


@pytest.fixture
def broker_name() -> str:
    """A name that no other test uses."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(autouse=True)
def nothing_stays_behind(broker_name: str) -> Iterator[None]:
    """Fail when a test leaves something in /dev/shm."""
    yield
    left = [name for name in os.listdir(SHM_DIRECTORY) if broker_name in name]
    for name in left:
        os.unlink(SHM_DIRECTORY / name)
    assert not left


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test touches the host's runtime or store directories."""
    monkeypatch.setenv("SHMQ_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SHMQ_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("SHMQ_URL", raising=False)
