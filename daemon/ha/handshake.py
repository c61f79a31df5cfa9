"""Both ends of a link prove that they know one secret, before anything else that they say is believed. No socket.

    slave -> master    AUTHENTICATION 8                               a word that a stock master reads as below 0
    master -> slave    AUTHENTICATION 8 | size 4, the master's claim  JSON, with a fresh nonce
    slave -> master    size 4, the slave's claim | its proof 32
    master -> slave    AUTHENTICATION 8 | 32 (size 4) | its proof 32  then the stream begins (stream.py)

A proof is HMAC-SHA256, under the secret, over the direction and both claims as they went over the wire. A claim says
nonce, role, cluster, broker, store and epoch. So no proof is good for another connection, in the other direction, or
for another peer; and a side that is greeted behind it has to be the proven one (`Claim.check`).

    state     AUTHENTICATION   GREETING   another first word              a claim and its proof     time
    begun     claim sent       closed     plain, or closed: not allowed   -                         closed
    claimed   -                -          -                               proven, or closed         closed
    proven, plain, closed: the handshake is over; `rest` are bytes behind it

Invariants:
 1. Only a peer that knows the secret is `proven`, whatever bytes come in whatever pieces.
 2. No more than BYTES_MAX bytes are held, and no longer than the time that the face gives.
 3. A slave sends only its first word before it knows that the master is one of ours: a stock one takes the last eight
    bytes that come for a log position.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from struct import Struct

import msgspec

from shmq.daemon.ha.meeting import Side
from shmq.daemon.ha.stream import (
    AUTHENTICATION,
    GREETING,
    HEADER_BYTES,
    REFUSAL,
    REFUSAL_BYTES_MAX,
    REPORT_BYTES,
    pack_header,
    pack_hello,
    pack_report,
    read_refusal,
)
from shmq.errors import ProtocolError
from shmq.typed_json import decode_json

NONCE_BYTES = 32
PROOF_BYTES = sha256().digest_size
CLAIM_BYTES_MAX = 2048
_SIZE = Struct(">i")
_FIRST = Struct(">q")
_HEADER = Struct(">qi")
BYTES_MAX = HEADER_BYTES + CLAIM_BYTES_MAX + PROOF_BYTES
_MASTER, _SLAVE = "master", "slave"
SAME_SECRET = "give both hosts the same --ha-secret-file, and start both again"
_LOOK_THERE = "see what that host's log says; a link is tried again every second"


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity that one end claims, for one connection."""

    nonce: str
    role: str
    cluster: str
    broker: str
    store: str
    epoch: int

    def check(self, side: Side) -> None:
        """Raise ProtocolError unless what a side says later agrees with what was proven."""
        said = (side.cluster, side.broker, side.store, side.epoch)
        proven = (self.cluster, self.broker, self.store, self.epoch)
        if said != proven:
            raise ProtocolError(f"the peer says that it is {said}, and has proven that it is {proven}")


def _claim(side: Side, role: str, nonce: bytes) -> bytes:
    assert len(nonce) == NONCE_BYTES
    return msgspec.json.encode(Claim(nonce.hex(), role, side.cluster, side.broker, side.store, side.epoch))


def _proof(secret: bytes, role: str, master: bytes, slave: bytes) -> bytes:
    words = (b"shmq link 1", role.encode(), master, slave)
    return hmac.digest(secret, b"".join(_SIZE.pack(len(word)) + word for word in words), "sha256")


class _Handshake:
    """What both ends have.

    Args:
        me: who this end is.
        nonce: NONCE_BYTES that were never used before.
        until_ms: when this end gives up.
        refuses_plain: why a stock peer of this address is refused, and what to do about it; None: it is not.
    """

    ROLE = ""

    def __init__(
        self, secret: bytes, me: Side, nonce: bytes, until_ms: int, refuses_plain: tuple[str, str] | None
    ) -> None:
        assert secret
        self.proven: Claim | None = None
        self.is_plain = False  # the peer speaks RocketMQ's stream, and may
        self.closed = ""
        self.cure = ""  # what the operator can do about it
        self._secret, self._me, self._until_ms = secret, me, until_ms
        self._nonce, self._refuses_plain = nonce, refuses_plain
        self._claim = _claim(me, self.ROLE, nonce)
        self._bytes = b""
        self._out = b""

    @property
    def is_over(self) -> bool:
        """Whether the peer is proven, plain, or given up."""
        return bool(self.proven is not None or self.is_plain or self.closed)

    @property
    def rest(self) -> bytes:
        """The bytes behind the handshake."""
        return self._bytes

    def take(self) -> bytes:
        """Return what is to be sent, and forget it."""
        out, self._out = self._out, b""
        return out

    def tick(self, now_ms: int) -> None:
        """Give up a peer that says nothing, or half of it."""
        if not self.is_over and now_ms >= self._until_ms:
            self._close("the peer has not proven in time who it is: it says nothing, or half of it", SAME_SECRET)

    def end(self, reason: str = "the peer closed the connection before it had proven who it is") -> None:
        """The connection is over."""
        if not self.is_over:
            self._close(reason, _LOOK_THERE)

    def feed(self, data: bytes) -> None:
        """Take bytes of the peer."""
        if self.is_over:
            return
        self._bytes += data
        try:
            while not self.is_over and self._step():
                pass
            if not self.is_over and len(self._bytes) > BYTES_MAX:
                raise ProtocolError(f"the peer sends more than {BYTES_MAX} bytes before it has proven who it is")
        except ProtocolError as error:
            self._close(str(error), error.hint or _LOOK_THERE)

    def _step(self) -> bool:
        raise NotImplementedError

    def _close(self, reason: str, cure: str) -> None:
        self.closed, self.cure = reason, cure
        self._bytes = b""

    def _read_claim(self, data: bytes, role: str) -> Claim:
        """Read the claim of a peer that has to be of this role; it is not proven yet."""
        try:
            claim = decode_json(data, Claim)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"the peer does not say who it is: {error}") from error
        if claim.nonce == self._nonce.hex() or claim.role != role:
            raise ProtocolError(
                f"the peer says that it is a {claim.role[:16]!a}, no {role}: these may be our own words"
            )
        return claim

    def _compare_names(self, claim: Claim) -> None:
        for what, mine, theirs in (
            ("cluster", self._me.cluster, claim.cluster),
            ("broker", self._me.broker, claim.broker),
        ):
            if mine != theirs:
                option = "name" if what == "broker" else what
                raise ProtocolError(
                    f"the {claim.role} is of the {what} {theirs[:64]!a}, this host of {mine!a}",
                    hint=f"give both hosts the same --{option}",
                )

    def _compare(self, proof: bytes, expected: bytes, role: str) -> None:
        if not hmac.compare_digest(proof, expected):
            raise ProtocolError(f"the {role} does not know this host's secret", hint=SAME_SECRET)


class MasterHandshake(_Handshake):
    """The master's end."""

    ROLE = _MASTER
    _is_claimed = False

    def _step(self) -> bool:
        return self._take_proof() if self._is_claimed else self._take_first()

    def _take_first(self) -> bool:
        if len(self._bytes) < REPORT_BYTES:
            return False
        (word,) = _FIRST.unpack_from(self._bytes)
        if word == AUTHENTICATION:
            self._is_claimed, self._bytes = True, self._bytes[REPORT_BYTES:]
            self._out += pack_header(AUTHENTICATION, len(self._claim)) + self._claim
        elif word == GREETING:
            raise ProtocolError("the slave proves no secret, and this master asks for one", hint=SAME_SECRET)
        elif self._refuses_plain is not None:
            raise ProtocolError(self._refuses_plain[0], hint=self._refuses_plain[1])
        else:
            self.is_plain = True
        return True

    def _take_proof(self) -> bool:
        if len(self._bytes) < _SIZE.size:
            return False
        (size,) = _SIZE.unpack_from(self._bytes)
        if not 0 < size <= CLAIM_BYTES_MAX:
            raise ProtocolError(f"the slave says who it is in {size} bytes, 1 to {CLAIM_BYTES_MAX} are possible")
        end = _SIZE.size + size
        if len(self._bytes) < end + PROOF_BYTES:
            return False
        theirs, proof, rest = (
            self._bytes[_SIZE.size : end],
            self._bytes[end : end + PROOF_BYTES],
            self._bytes[end + PROOF_BYTES :],
        )
        claim = self._read_claim(theirs, _SLAVE)
        self._compare(proof, _proof(self._secret, _SLAVE, self._claim, theirs), _SLAVE)
        self._compare_names(claim)
        if rest:
            raise ProtocolError("the slave goes on before this master has proven who it is")
        mine = _proof(self._secret, _MASTER, self._claim, theirs)
        self._out += pack_header(AUTHENTICATION, len(mine)) + mine
        self.proven, self._bytes = claim, b""
        return True


class SlaveHandshake(_Handshake):
    """The slave's end."""

    ROLE = _SLAVE

    def __init__(
        self, secret: bytes, me: Side, nonce: bytes, until_ms: int, refuses_plain: tuple[str, str] | None
    ) -> None:
        super().__init__(secret, me, nonce, until_ms, refuses_plain)
        self._master: Claim | None = None
        self._expected = b""
        self._out = pack_report(AUTHENTICATION)

    def _step(self) -> bool:
        if len(self._bytes) < HEADER_BYTES:
            return False
        word, size = _HEADER.unpack_from(self._bytes)
        most = REFUSAL_BYTES_MAX if word == REFUSAL else CLAIM_BYTES_MAX
        if word not in (AUTHENTICATION, REFUSAL) or not 0 <= size <= most:
            raise ProtocolError(f"the master answers {size} bytes at {word}, and not who it is")
        if len(self._bytes) < HEADER_BYTES + size:
            return False
        data, self._bytes = self._bytes[HEADER_BYTES : HEADER_BYTES + size], self._bytes[HEADER_BYTES + size :]
        if word == REFUSAL:
            reason, cure = read_refusal(data)
            raise ProtocolError(f"the master refuses this slave: {reason}", hint=cure)
        if self._master is not None:
            self._compare(data, self._expected, _MASTER)
            if self._bytes:
                raise ProtocolError("the master goes on before it was greeted")
            self.proven = self._master
        elif size:
            self._master = self._read_claim(data, _MASTER)
            self._out += pack_hello(self._claim) + _proof(self._secret, _SLAVE, data, self._claim)
            self._expected = _proof(self._secret, _MASTER, data, self._claim)
            self._compare_names(self._master)  # said first: that master says why, too
        elif self._refuses_plain is not None:
            raise ProtocolError(self._refuses_plain[0], hint=self._refuses_plain[1])
        else:
            self.is_plain = True
        return True
