"""What etcd is asked byte by byte, and what of its answers is not believed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from shmq.daemon.ha.election.coordination import LeaderKey, Lease, Outcome, StateKey, Transaction, View
from shmq.daemon.ha.etcd.messages import (
    ANSWER_BYTES_MAX,
    Failure,
    Seen,
    commit_call,
    grant_call,
    keys_of,
    read_commit,
    read_failure,
    read_grant,
    read_keep_alive,
    read_token,
    read_watch_line,
    watch_call,
)
from shmq.errors import ProtocolError
from tests.tables.rows import every_row

KEYS = keys_of("c", "b")
HEADER = {"cluster_id": "7", "revision": "9"}
LEADER = {"uuid": "A", "address": "host:1"}
STATE = {"epoch": 3, "in_sync": ["A", "B"], "successor": "", "why": "elected"}


def to64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def pair(key: str, value: Any, **more: str) -> dict[str, str]:
    return {"key": to64(key), "value": to64(json.dumps(value)), "create_revision": "4", "mod_revision": "5", **more}


def answer(leader: Any = None, state: Any = None, **more: Any) -> bytes:
    ranges = [{"response_range": {"kvs": [found]} if found else {}} for found in (leader, state)]
    return json.dumps({"header": HEADER, "responses": ranges, **more}).encode()


def test_a_transaction_guards_writes_and_then_reads() -> None:
    call = commit_call(KEYS, Transaction(0, 5, LeaderKey("A", "host:1", 77, 0), False, StateKey(4, frozenset("A"))))
    body = json.loads(call.body)
    assert call.path == "/v3/kv/txn"
    assert body["compare"] == [
        {"key": to64(KEYS.leader), "target": "MOD", "result": "EQUAL", "mod_revision": "0"},
        {"key": to64(KEYS.state), "target": "MOD", "result": "EQUAL", "mod_revision": "5"},
    ]
    reads = [{"request_range": {"key": to64(key)}} for key in (KEYS.leader, KEYS.state)]
    assert body["failure"] == body["success"][2:] == reads
    put = body["success"][0]["request_put"]
    assert put["lease"] == "77" and json.loads(base64.b64decode(put["value"])) == LEADER
    assert "lease" not in body["success"][1]["request_put"]


def test_a_transaction_without_guards_and_writes_reads() -> None:
    body = json.loads(commit_call(KEYS, Transaction()).body)
    assert body["compare"] == [] and body["success"] == body["failure"]


def test_a_hand_over_deletes_the_leader() -> None:
    body = json.loads(commit_call(KEYS, Transaction(4, 5, None, True, StateKey(4, frozenset("A"), "B"))).body)
    assert body["success"][0] == {"request_delete_range": {"key": to64(KEYS.leader)}}


def test_a_lease_is_asked_for_in_whole_seconds_and_not_for_less() -> None:
    assert [json.loads(grant_call(ms).body) for ms in (4_000, 4_001)] == [{"TTL": "4"}, {"TTL": "5"}]


def test_a_watch_begins_behind_what_was_seen_and_ends_behind_the_group() -> None:
    wanted = json.loads(watch_call(KEYS, 8).body)["create_request"]
    assert wanted["start_revision"] == "9"
    begin, end = (base64.b64decode(wanted[name]).decode() for name in ("key", "range_end"))
    assert begin < KEYS.leader < KEYS.state < end and not begin < keys_of("c", "b2").state < end


def test_an_answer_is_read() -> None:
    read = read_commit(KEYS, answer(pair(KEYS.leader, LEADER, lease="77"), pair(KEYS.state, STATE), succeeded=True))
    state = StateKey(3, frozenset("AB"), "", "elected", 5)
    assert read == (7, Outcome(True, View(9, LeaderKey("A", "host:1", 77, 5), state)))
    assert read_commit(KEYS, answer()).answer == Outcome(False, View(9, None, None))


@every_row(
    ("leader", "state"),
    [
        (pair(KEYS.leader, LEADER), None),  # without a lease it would never end
        (pair(KEYS.leader, LEADER, lease="-1"), None),
        (pair(KEYS.leader, LEADER, lease=str(1 << 63)), None),
        (pair(KEYS.leader, {"uuid": "", "address": ""}, lease="1"), None),
        (pair(KEYS.leader, {"uuid": "A" * 513, "address": ""}, lease="1"), None),
        (pair(KEYS.leader, ["A"], lease="1"), None),
        (pair(KEYS.state, LEADER, lease="1"), None),
        (None, pair(KEYS.state, STATE | {"epoch": 0})),
        (None, pair(KEYS.state, STATE | {"epoch": 1 << 53})),
        (None, pair(KEYS.state, STATE | {"epoch": "3"})),
        (None, pair(KEYS.state, STATE | {"in_sync": ["A", "A"]})),
        (None, pair(KEYS.state, STATE | {"in_sync": [str(number) for number in range(65)]})),
        (None, pair(KEYS.state, STATE) | {"value": "%"}),
        (None, pair(KEYS.state, STATE, mod_revision="0")),
    ],
)
def test_what_the_keys_hold_is_not_believed(leader: Any, state: Any) -> None:
    with pytest.raises(ProtocolError):
        read_commit(KEYS, answer(leader, state))


@every_row(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"{" * 5_000,
        b'{"header":{"cluster_id":"7","revision":"9"}}',
        answer()[:-2],
        b" " * ANSWER_BYTES_MAX + answer(),
        answer(header={"cluster_id": "0", "revision": "9"}),
        answer(header={"cluster_id": "7", "revision": "0"}),
        answer(header={"cluster_id": "7", "revision": "\u0669"}),
    ],
)
def test_another_answer_than_that_to_a_transaction_is_not_believed(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_commit(KEYS, body)


def test_a_lease_that_has_ended_has_no_time() -> None:
    kept = json.dumps({"result": {"header": HEADER, "ID": "5"}}).encode()
    assert read_keep_alive(5, kept) == (7, Lease(5, 0))
    with pytest.raises(ProtocolError):
        read_keep_alive(6, kept)
    with pytest.raises(ProtocolError):
        read_grant(json.dumps({"header": HEADER, "ID": "5"}).encode())


@every_row(
    ("code", "was_not_done"),
    [(2, False), (3, True), (4, False), (5, True), (7, True), (8, True), (13, False), (14, False), (16, True)],
)
def test_only_what_says_so_was_not_done(code: int, was_not_done: bool) -> None:
    assert read_failure(500, json.dumps({"error": "x\n", "code": code}).encode()) == (
        was_not_done, False, code == 16, "x?",
    )  # fmt: skip
    streamed = read_keep_alive(5, json.dumps({"error": {"message": "x", "grpc_code": code}}).encode())
    assert isinstance(streamed, Failure) and streamed.was_not_done is was_not_done


def test_a_token_cannot_end_its_header() -> None:
    assert read_token(b'{"token":"abc.7"}') == "abc.7"
    for token in ("", "a\r\nb", "\u00e9", "a" * 5_000):
        with pytest.raises(ProtocolError):
            read_token(json.dumps({"token": token}).encode())


def test_a_watch_ends_with_whatever_it_does_not_understand() -> None:
    assert read_watch_line(b'{"result":{"created":true}}') is Seen.NOTHING
    assert read_watch_line(b'{"result":{"events":[{}]}}') is Seen.CHANGED
    for line in (b"", b"x", b"{}", b'{"error":{}}', b'{"result":{"canceled":true,"compact_revision":"2"}}'):
        assert read_watch_line(line) is Seen.OVER
