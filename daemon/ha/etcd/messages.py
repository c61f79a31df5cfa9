"""etcd's JSON gateway (v3): what is asked as paths and bodies, and answers, which are input, as what an election reads.

    /shmq/CLUSTER/BROKER/leader   {"uuid", "address"}                        with a lease
    /shmq/CLUSTER/BROKER/state    {"epoch", "in_sync", "successor", "why"}

    commit       /v3/kv/txn            guards · puts and deletes, then both keys are read · both keys are read
    grant        /v3/lease/grant       whole seconds, rounded up
    keep alive   /v3/lease/keepalive   a stream of one answer; no TTL: the lease has ended
    revoke       /v3/lease/revoke      an unknown lease has ended
    watch        /v3/watch             a stream of lines: created, then events, or the revision was compacted

Keys and values are base64; numbers of 64 bits are text, and zeros are left out.

Invariants:
 1. Nothing is believed of an answer that is not wholly as described here: it is a ProtocolError.
 2. A number is within its range, a text within its length, before it leaves this module.
"""

from __future__ import annotations

import base64
import binascii
import json
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

import msgspec

from shmq.daemon.ha.election.coordination import LeaderKey, Lease, Outcome, StateKey, Transaction, View
from shmq.errors import ProtocolError
from shmq.store.lineage.epochs import EPOCH_MAX
from shmq.typed_json import decode_json

ANSWER_BYTES_MAX = 64 << 10
_NUMBER_MAX = (1 << 63) - 1
_CLUSTER_MAX = (1 << 64) - 1
_TEXT_MAX = 512
_MEMBERS_MAX = 64
_TTL_MS_MAX = 3_600_000
_DONE_NEVER = frozenset((3, 5, 7, 8, 9, 16))  # gRPC: argument, not found, denied, exhausted, precondition, no token
_NOT_FOUND, _UNAUTHENTICATED = 5, 16
_AnswerT = TypeVar("_AnswerT", bound=msgspec.Struct)


class Keys(NamedTuple):
    """The two keys of one group of brokers, and what both begin with."""

    prefix: str
    leader: str
    state: str


def keys_of(cluster: str, broker: str) -> Keys:
    """Return the keys of a broker name in a cluster."""
    prefix = f"/shmq/{cluster}/{broker}/"
    return Keys(prefix, f"{prefix}leader", f"{prefix}state")


class Call(NamedTuple):
    """What is posted, and where."""

    path: str
    body: bytes


class Read(NamedTuple):
    """An answer, and the number of the etcd cluster that gave it."""

    cluster: int
    answer: Outcome | Lease


class Failure(NamedTuple):
    """An answer that is an error.

    Attributes:
        was_not_done: nothing was done, for sure, and nothing will be.
    """

    was_not_done: bool
    is_unknown_lease: bool
    is_token_refused: bool
    reason: str


class Seen(Enum):
    """What a line of a watch says."""

    NOTHING = auto()
    CHANGED = auto()
    OVER = auto()  # compacted, or the server ends it: both keys are to be read


class _Header(msgspec.Struct):
    revision: str = "0"
    cluster_id: str = "0"


class _Pair(msgspec.Struct):
    key: str
    value: str = ""
    mod_revision: str = "0"
    lease: str = "0"


class _Range(msgspec.Struct):
    kvs: list[_Pair] = []


class _Response(msgspec.Struct):
    response_range: _Range | None = None


class _Transaction(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _Lease(msgspec.Struct):
    header: _Header
    ID: str = "0"
    TTL: str = "0"


class _StreamError(msgspec.Struct):
    message: str = ""
    grpc_code: int = 2


class _KeptAlive(msgspec.Struct):
    result: _Lease | None = None
    error: _StreamError | None = None


class _Error(msgspec.Struct):
    error: str
    code: int = 2


class _Token(msgspec.Struct):
    token: str


class _Watched(msgspec.Struct):
    created: bool = False
    canceled: bool = False
    events: list[dict[str, Any]] = []


class _WatchLine(msgspec.Struct):
    result: _Watched | None = None


class _Leader(msgspec.Struct):
    uuid: str
    address: str


class _State(msgspec.Struct):
    epoch: int
    in_sync: list[str]
    successor: str = ""
    why: str = ""


def commit_call(keys: Keys, transaction: Transaction) -> Call:
    """Return what asks for a transaction; both keys are read after it, or, if a guard does not hold, without it."""
    compare = []
    if transaction.leader_revision is not None:
        compare.append(_guard(keys.leader, transaction.leader_revision))
    if transaction.state_revision is not None:
        compare.append(_guard(keys.state, transaction.state_revision))
    reads = [{"request_range": {"key": _to64(key)}} for key in (keys.leader, keys.state)]
    writes: list[dict[str, Any]] = []
    if transaction.leader is not None:
        leader = {"uuid": transaction.leader.uuid, "address": transaction.leader.address}
        writes.append(_put(keys.leader, leader, lease=str(transaction.leader.lease)))
    elif transaction.is_leader_deleted:
        writes.append({"request_delete_range": {"key": _to64(keys.leader)}})
    if (state := transaction.state) is not None:
        in_sync = sorted(state.in_sync)
        value = {"epoch": state.epoch, "in_sync": in_sync, "successor": state.successor, "why": state.why}
        writes.append(_put(keys.state, value))
    return _call("/v3/kv/txn", {"compare": compare, "success": [*writes, *reads], "failure": reads})


def grant_call(ttl_ms: int) -> Call:
    """Return what asks for a lease."""
    return _call("/v3/lease/grant", {"TTL": str(-(-ttl_ms // 1_000))})


def keep_alive_call(lease: int) -> Call:
    """Return what asks for more time."""
    return _call("/v3/lease/keepalive", {"ID": str(lease)})


def revoke_call(lease: int) -> Call:
    """Return what ends a lease."""
    return _call("/v3/lease/revoke", {"ID": str(lease)})


def watch_call(keys: Keys, revision: int) -> Call:
    """Return what asks for everything newer than a revision."""
    end = keys.prefix[:-1] + chr(ord(keys.prefix[-1]) + 1)
    wanted = {"key": _to64(keys.prefix), "range_end": _to64(end), "start_revision": str(revision + 1)}
    return _call("/v3/watch", {"create_request": wanted})


def authenticate_call(user: str, password: str) -> Call:
    """Return what asks for a token."""
    return _call("/v3/auth/authenticate", {"name": user, "password": password})


def read_commit(keys: Keys, body: bytes) -> Read:
    """Return the outcome of a transaction.

    Raises:
        ProtocolError: it is not the answer to one.
    """
    answer = _decoded(body, _Transaction)
    ranges = [response.response_range for response in answer.responses if response.response_range is not None]
    if len(ranges) != 2:
        raise ProtocolError(f"etcd answers a transaction with {len(ranges)} ranges, 2 were asked for")
    leader, state = (_pair(key, found) for key, found in zip((keys.leader, keys.state), ranges, strict=True))
    view = View(
        _number(answer.header.revision, "revision", least=1),
        _leader(leader) if leader is not None else None,
        _state(state) if state is not None else None,
    )
    return Read(_cluster(answer.header), Outcome(answer.succeeded, view))


def read_grant(body: bytes) -> Read:
    """Return a lease that was made.

    Raises:
        ProtocolError: it is not the answer to a wish for one.
    """
    answer = _decoded(body, _Lease)
    return Read(_cluster(answer.header), Lease(_number(answer.ID, "lease", least=1), _ttl_ms(answer.TTL, least=1)))


def read_keep_alive(lease: int, body: bytes) -> Read | Failure:
    """Return the lease as it is now: without time if it had ended.

    Raises:
        ProtocolError: it is not the answer to a wish for time.
    """
    answer = _decoded(body, _KeptAlive)
    if answer.error is not None:
        return _failure(answer.error.grpc_code, answer.error.message)
    if answer.result is None or _number(answer.result.ID, "lease") != lease:
        raise ProtocolError(f"etcd answers for another lease than {lease}")
    return Read(_cluster(answer.result.header), Lease(lease, _ttl_ms(answer.result.TTL)))


def read_revoke(lease: int, body: bytes) -> Read:
    """Return the lease, which has no time any more.

    Raises:
        ProtocolError: it is not the answer to a revocation.
    """
    return Read(_cluster(_decoded(body, _Lease).header), Lease(lease, 0))


def read_token(body: bytes) -> str:
    """Return a token, which goes into a header.

    Raises:
        ProtocolError: it is none.
    """
    token = _text(_decoded(body, _Token).token, "token", 8 * _TEXT_MAX)
    if not token or not token.isascii() or not token.isprintable():
        raise ProtocolError("etcd sends a token that no header can hold")
    return token


def read_watch_line(line: bytes) -> Seen:
    """Return what a line of a watch says; whatever is not understood ends it."""
    try:
        watched = _decoded(line, _WatchLine).result
    except ProtocolError:
        return Seen.OVER
    if watched is None or watched.canceled:
        return Seen.OVER
    return Seen.CHANGED if watched.events else Seen.NOTHING


def read_failure(status: int, body: bytes) -> Failure:
    """Return what an answer with another status than 200 says."""
    try:
        error = _decoded(body, _Error)
    except ProtocolError:
        return Failure(status in (404, 405), False, False, f"HTTP status {status}, without a reason")
    return _failure(error.code, error.error)


def _failure(code: int, reason: str) -> Failure:
    reason = "".join(character if character.isprintable() else "?" for character in reason[:_TEXT_MAX])
    is_old = code == _UNAUTHENTICATED or "revision of auth store is old" in reason
    return Failure(code in _DONE_NEVER, code == _NOT_FOUND and "lease" in reason, is_old, reason or f"code {code}")


def _call(path: str, body: dict[str, Any]) -> Call:
    return Call(path, json.dumps(body, separators=(",", ":")).encode())


def _to64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _guard(key: str, revision: int) -> dict[str, Any]:
    # Of the last put, also for the leader: a key that was put over another's keeps the revision at which it was made.
    return {"key": _to64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _put(key: str, value: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"request_put": {"key": _to64(key), "value": _to64(json.dumps(value, separators=(",", ":"))), **more}}


def _decoded(body: bytes, kind: type[_AnswerT]) -> _AnswerT:
    if len(body) > ANSWER_BYTES_MAX:
        raise ProtocolError(f"etcd answers with more than {ANSWER_BYTES_MAX} bytes")
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"etcd answers with something else: {error}") from error


def _pair(key: str, found: _Range) -> _Pair | None:
    if not found.kvs:
        return None
    if len(found.kvs) != 1 or found.kvs[0].key != _to64(key):
        raise ProtocolError(f"etcd answers with another key than {key}")
    return found.kvs[0]


def _value(pair: _Pair, kind: type[_AnswerT]) -> _AnswerT:
    try:
        return _decoded(base64.b64decode(pair.value, validate=True), kind)
    except (binascii.Error, ProtocolError) as error:
        key = base64.b64decode(pair.key).decode()
        raise ProtocolError(
            f"the key {key} holds something else: {error}", hint=f"if no broker of the group runs: etcdctl del {key}"
        ) from error


def _leader(pair: _Pair) -> LeaderKey:
    value = _value(pair, _Leader)
    return LeaderKey(
        _text(value.uuid, "uuid", least=1),
        _text(value.address, "address"),
        _number(pair.lease, "lease", least=1),
        _number(pair.mod_revision, "revision", least=1),
    )


def _state(pair: _Pair) -> StateKey:
    value = _value(pair, _State)
    in_sync = frozenset(_text(uuid, "uuid", least=1) for uuid in value.in_sync)
    if not 0 < value.epoch <= EPOCH_MAX:
        raise ProtocolError(f"etcd holds epoch {value.epoch}")
    if not len(in_sync) == len(value.in_sync) <= _MEMBERS_MAX:
        raise ProtocolError(f"etcd holds a set of {len(value.in_sync)} stores, {len(in_sync)} of them different")
    successor, why = _text(value.successor, "successor"), _text(value.why, "why")
    return StateKey(value.epoch, in_sync, successor, why, _number(pair.mod_revision, "revision", least=1))


def _text(text: str, what: str, most: int = _TEXT_MAX, *, least: int = 0) -> str:
    if not least <= len(text) <= most:
        raise ProtocolError(f"etcd answers with a {what} of {len(text)} characters, at most {most} can be")
    return text


def _number(text: str, what: str, *, least: int = 0, most: int = _NUMBER_MAX) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise ProtocolError(f"etcd answers with {text[:32]!r} as a {what}")
    return int(text)


def _cluster(header: _Header) -> int:
    return _number(header.cluster_id, "cluster", least=1, most=_CLUSTER_MAX)


def _ttl_ms(text: str, *, least: int = 0) -> int:
    return min(_number(text, "TTL", least=least) * 1_000, _TTL_MS_MAX)
