"""Bytes of the log leave from the page cache where the file system can do that, and are the same where it cannot."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from shmq.daemon.ha.log_file import LogFile
from shmq.shm.core import Store
from shmq.testing import Broker
from tests.shm.looking import looking

FILE_BYTES = 4 << 20
LARGE = 300_000


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Broker(file_bytes=FILE_BYTES) as broker, broker.connect() as mq, looking(broker) as store:
        producer = mq.producer()
        for number in range(60):
            producer.send("orders", bytes([number]) * 100_000)
        yield store


def refuse(*_: object) -> int:
    raise OSError(errno.EINVAL, "this file system has no such call")


@pytest.mark.parametrize("can_sendfile", [True, False])
def test_what_is_sent_is_what_is_read(can_sendfile: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    file, (ours, theirs) = LogFile(store), socket.socketpair()
    if not can_sendfile:
        monkeypatch.setattr(os, "sendfile", refuse)
    ours.setblocking(False)
    with ours, theirs:
        for begin in (0, 1_234, FILE_BYTES + 99):
            got, at = bytearray(), begin
            while at < begin + LARGE:
                try:
                    at += file.send(ours, at, begin + LARGE - at)
                except BlockingIOError:
                    got += theirs.recv(1 << 20)
            while len(got) < LARGE:
                got += theirs.recv(1 << 20)
            assert got == file.read(begin, LARGE)
    file.close()


def test_a_file_that_was_truncated_is_an_error_not_a_loop(store: Store) -> None:
    file, (ours, theirs) = LogFile(store), socket.socketpair()
    path = f"{store.head['store_path']}/commitlog/{FILE_BYTES:020d}"
    with ours, theirs:
        os.truncate(path, 1 << 20)
        try:
            with pytest.raises(OSError, match=rf"the log file at {FILE_BYTES} ends after {2 << 20} bytes"):
                file.send(ours, FILE_BYTES + (2 << 20), LARGE)
        finally:
            os.truncate(path, FILE_BYTES)
    file.close()
