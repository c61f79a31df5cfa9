"""The coordination store in a real etcd: guards, leases, watches; endpoints that die, and answers that do not come."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmq.daemon.ha.election.coordination import (
    LeaderKey,
    StateKey,
    StoreRefused,
    StoreUnanswered,
    Transaction,
    View,
)
from shmq.daemon.ha.etcd.client import Etcd, EtcdOptions
from shmq.errors import UsageError
from tests.deadline import eventually
from tests.ha.etcd.server import EtcdServer, make_certificates, needs_etcd, three_members
from tests.ports import free_ports

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]
READ = Transaction()
LONG = 30.0  # what a call may take on a busy machine


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.stop()


def client(*endpoints: str, seconds: float = LONG, watch: float = LONG, group: str = "b", **options: str) -> Etcd:
    return Etcd(EtcdOptions(endpoints, **options), "c", group, call_seconds=seconds, watch_seconds=watch)


def leader(lease: int, uuid: str = "A") -> LeaderKey:
    return LeaderKey(uuid, "host:1", lease, 0)


def elected(etcd: Etcd, uuid: str = "A", ttl_ms: int = 60_000) -> View:
    before = etcd.commit(READ).view
    revision = before.state.revision if before.state else 0
    epoch = before.state.epoch + 1 if before.state else 1
    state = StateKey(epoch, frozenset({uuid}), "", "elected")
    outcome = etcd.commit(Transaction(0, revision, leader(etcd.grant(ttl_ms).number, uuid), False, state))
    assert outcome.is_done
    return outcome.view


# -- transactions and leases


def test_nothing_is_there_before_the_first_election(server: EtcdServer) -> None:
    outcome = client(server.endpoint).commit(READ)
    assert outcome.is_done and outcome.view == View(outcome.view.revision, None, None)


def test_each_guard_holds_a_transaction_up(server: EtcdServer) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd)
    assert view.leader is not None and view.state is not None
    state = view.state._replace(in_sync=frozenset("AB"))
    right = Transaction(view.leader.revision, view.state.revision, None, False, state)
    for wrong in (
        right._replace(leader_revision=0),
        right._replace(leader_revision=view.leader.revision + 1),
        right._replace(state_revision=0),
        right._replace(state_revision=view.state.revision + 1),
    ):
        outcome = etcd.commit(wrong)
        assert not outcome.is_done and outcome.view == view
    outcome = etcd.commit(right)
    assert outcome.is_done and outcome.view.state is not None and outcome.view.leader == view.leader
    assert outcome.view.state.in_sync == {"A", "B"} and outcome.view.state.revision > view.state.revision
    assert not etcd.commit(right).is_done


def test_a_leader_key_keeps_its_revision_and_another_group_has_its_own(server: EtcdServer) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd)
    assert client(server.endpoint, group="b2").commit(READ).view[1:] == (None, None)
    elected(client(server.endpoint, group="b2"))
    assert etcd.commit(READ).view[1:] == view[1:]


def test_a_hand_over_ends_the_leader_and_names_the_next(server: EtcdServer) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd)
    assert view.leader is not None and view.state is not None
    state = view.state._replace(successor="B")
    outcome = etcd.commit(Transaction(view.leader.revision, view.state.revision, None, True, state))
    assert outcome.is_done and outcome.view.leader is None
    assert outcome.view.state is not None and outcome.view.state.successor == "B"


def test_a_lease_that_is_not_kept_alive_ends_and_its_leader_with_it(server: EtcdServer) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd, ttl_ms=2_000)
    assert view.leader is not None
    assert etcd.keep_alive(view.leader.lease).ttl_ms >= 2_000
    gone = eventually(lambda: (seen := etcd.commit(READ).view).leader is None and seen, "the lease ends")
    assert gone.state == view.state
    assert etcd.keep_alive(view.leader.lease).ttl_ms == 0


def test_a_revoked_lease_ends_its_leader_and_puts_no_other(server: EtcdServer) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd)
    assert view.leader is not None and view.state is not None
    for _ in range(2):
        assert etcd.revoke(view.leader.lease).ttl_ms == 0
    with pytest.raises(StoreRefused, match="lease not found"):
        etcd.commit(Transaction(0, view.state.revision, leader(view.leader.lease)))
    assert etcd.commit(READ).view.leader is None


def test_what_is_no_value_of_ours_is_said_with_its_key(server: EtcdServer) -> None:
    key, value = (base64.b64encode(text).decode() for text in (b"/shmq/c/b/state", b"{}"))
    server.post("/v3/kv/put", json.dumps({"key": key, "value": value}).encode())
    with pytest.raises(StoreUnanswered, match="/shmq/c/b/state") as caught:
        client(server.endpoint).commit(READ)
    assert "etcdctl" in caught.value.hint


# -- watches


def watched(etcd: Etcd, revision: int, change: Callable[[], object]) -> View:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(etcd.watch, revision)
        change()
        return found.result()


def test_a_watch_brings_what_happened_before_it_and_what_happens_in_it(server: EtcdServer) -> None:
    etcd, other = client(server.endpoint, watch=600.0), client(server.endpoint)
    before = etcd.commit(READ).view
    view = elected(other)
    assert etcd.watch(before.revision) == view
    assert view.leader is not None
    lease = view.leader.lease
    seen = watched(etcd, view.revision, lambda: other.revoke(lease))
    assert seen.leader is None and seen.state == view.state


def test_a_watch_of_a_compacted_revision_brings_what_there_is(server: EtcdServer) -> None:
    etcd = client(server.endpoint, watch=600.0)
    view = elected(etcd)
    server.post("/v3/kv/compaction", json.dumps({"revision": str(view.revision)}).encode())
    assert etcd.watch(0) == view


def test_a_watch_in_which_nothing_happens_ends_by_itself(server: EtcdServer) -> None:
    etcd = client(server.endpoint, watch=0.3)
    view = elected(etcd)
    assert etcd.watch(view.revision) == view


def test_a_watch_goes_on_after_a_restart(server: EtcdServer) -> None:
    etcd = client(server.endpoint, watch=600.0)
    view = elected(etcd)

    def restarted() -> None:
        server.stop()
        server.start()

    with contextlib.suppress(StoreRefused, StoreUnanswered):
        watched(etcd, view.revision, restarted)
    assert view.leader is not None
    lease, revision = view.leader.lease, etcd.commit(READ).view.revision
    seen = watched(etcd, revision, lambda: client(server.endpoint).revoke(lease))
    assert seen.leader is None and seen.state == view.state


def test_a_connection_that_brought_a_watch_brings_no_other_answer(server: EtcdServer) -> None:
    etcd, other = client(server.endpoint, watch=600.0), client(server.endpoint)
    view = elected(etcd)
    assert view.leader is not None and view.state is not None
    for _ in range(8):
        state = etcd.commit(READ).view.state
        assert state is not None
        for _ in range(3):  # more events than the first, which ends the watch
            changed = other.commit(Transaction(view.leader.revision, state.revision, None, False, state))
            assert changed.is_done and changed.view.state is not None
            state = changed.view.state
        assert etcd.watch(view.revision) == etcd.commit(READ).view == changed.view
        assert etcd.keep_alive(view.leader.lease).ttl_ms


# -- endpoints


def test_an_endpoint_that_is_not_there_is_passed_over(server: EtcdServer) -> None:
    etcd = client(f"http://127.0.0.1:{free_ports()}", server.endpoint)
    assert elected(etcd) == etcd.commit(READ).view


def test_without_an_endpoint_nothing_was_done(server: EtcdServer) -> None:
    server.stop()
    with pytest.raises(StoreRefused, match="no endpoint"):
        client(server.endpoint).grant(4_000)


def test_a_server_that_died_is_asked_again_once_it_is_back(server: EtcdServer) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd)
    server.stop()
    with pytest.raises((StoreRefused, StoreUnanswered)):
        etcd.commit(READ)
    server.start()
    assert etcd.commit(READ).view == view


def test_a_server_that_stands_still_ends_the_call_in_its_time_and_the_next_goes_elsewhere(
    server: EtcdServer, tmp_path: Path
) -> None:
    other = EtcdServer(tmp_path / "other")
    other.start()
    try:
        etcd = client(other.endpoint, server.endpoint, seconds=2.0)
        os.kill(other.process.pid, signal.SIGSTOP)
        with pytest.raises(StoreUnanswered, match="does not answer"):
            etcd.grant(4_000)
        assert etcd.grant(4_000).number
    finally:
        os.kill(other.process.pid, signal.SIGCONT)
        other.stop()


def test_a_cluster_goes_on_without_any_one_of_its_members(tmp_path: Path) -> None:
    with three_members(tmp_path) as members:
        etcd = client(*(member.endpoint for member in members))
        view = elected(etcd)
        assert view.leader is not None
        lease = view.leader.lease
        for member in members:
            member.stop()
            assert eventually(lambda: kept_alive(etcd, lease), "the others have a leader") == view
            member.start()


def kept_alive(etcd: Etcd, lease: int) -> View | None:
    with contextlib.suppress(StoreRefused, StoreUnanswered):
        assert etcd.keep_alive(lease).ttl_ms
        return etcd.commit(READ).view
    return None


def test_another_cluster_is_not_believed(server: EtcdServer, tmp_path: Path) -> None:
    other = EtcdServer(tmp_path / "other")
    other.start()
    try:
        etcd = client(server.endpoint, other.endpoint)
        elected(etcd)
        server.stop()
        with pytest.raises((StoreRefused, StoreUnanswered)):
            etcd.commit(READ)
        with pytest.raises(StoreUnanswered, match="was the first"):
            etcd.commit(READ)
    finally:
        other.stop()


def test_a_store_that_has_lost_its_data_is_not_believed(server: EtcdServer, tmp_path: Path) -> None:
    etcd = client(server.endpoint)
    view = elected(etcd)
    server.stop()
    shutil.rmtree(next(tmp_path.glob("**/data")))
    server.start()
    with pytest.raises(StoreUnanswered, match=f"and was at {view.revision}: its data were lost") as lost:
        etcd.commit(READ)
    assert "stop every broker" in lost.value.hint
    assert client(server.endpoint).commit(READ).view.state is None, "a broker that starts again sees it"


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that says one thing to every client, and hangs up; and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        asked.append(peer.recv(65_536))
                        peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"header":{',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{"header"',
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000_000,
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 503 No\r\nContent-Length: 45\r\n\r\n{"error":"etcdserver: no leader", "code": 14 }',
        b"SSH-2.0-OpenSSH\r\n",
    ],
)
def test_after_half_an_answer_the_outcome_is_unknown_and_nothing_is_sent_twice(answer: bytes) -> None:
    with answering(answer) as (endpoint, asked):
        etcd = client(endpoint)
        with pytest.raises(StoreUnanswered):
            etcd.commit(Transaction(0, 0, leader(1), False, StateKey(1, frozenset("A"))))
        assert len(asked) == 1


# -- who may ask


def test_a_user_is_known_by_its_password_and_a_lost_token_is_asked_for_again(server: EtcdServer) -> None:
    for path, body in (
        ("user/add", {"name": "root", "password": "right"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("enable", {}),
    ):
        server.post(f"/v3/auth/{path}", json.dumps(body).encode())
    etcd = client(server.endpoint, user="root", password="right")
    view = elected(etcd)
    assert etcd.watch(0) == view
    server.stop()  # tokens are in its memory
    server.start()
    assert etcd.commit(READ).view == view
    with pytest.raises(StoreRefused, match="does not accept user root"):
        client(server.endpoint, user="root", password="wrong").commit(READ)
    with pytest.raises(StoreRefused, match="user name is empty"):
        client(server.endpoint).commit(READ)
    assert "right" not in repr(EtcdOptions((server.endpoint,), user="root", password="right"))


def test_both_sides_show_certificates(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    server = EtcdServer(tmp_path, certificates)
    server.start()
    cert, key = map(str, certificates.client)
    try:
        etcd = client(server.endpoint, ca=str(certificates.ca), certificate=cert, key=key)
        assert etcd.watch(0) == etcd.commit(READ).view
        elected(etcd)
        for trusted in ({"ca": str(certificates.ca)}, {"certificate": cert, "key": key}):
            with pytest.raises((StoreUnanswered, StoreRefused)):
                client(server.endpoint, **trusted).commit(READ)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "endpoint", ["", "host:2379", "ftp://host:2379", "http://host", "http://host:0", "http://host:99999",
                 "http://host:2379/v3", "http://user@host:2379", "http://[::1"],
)  # fmt: skip
def test_what_is_no_endpoint_is_said(endpoint: str) -> None:
    with pytest.raises(UsageError) as caught:
        EtcdOptions((endpoint,))
    assert caught.value.hint


def test_certificates_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="certificates for etcd"):
        client("https://host:2379", ca=str(tmp_path / "none"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="a FIFO and no plain file"):
        client("https://host:2379", ca=str(tmp_path / "fifo"))
    with pytest.raises(UsageError, match="needs its key"):
        EtcdOptions(("https://host:2379",), certificate="one")
