"""Two ends prove one secret to each other: every cut, every flipped bit, every stranger."""

from __future__ import annotations

import msgspec
import pytest

from shmq.daemon.ha.handshake import BYTES_MAX, NONCE_BYTES, MasterHandshake, SlaveHandshake
from shmq.daemon.ha.leader import LeaderLink, LogSpan
from shmq.daemon.ha.meeting import Side, State, side_bytes
from shmq.daemon.ha.slave.follower import FollowerLink
from shmq.daemon.ha.stream import (
    AUTHENTICATION,
    GREETING,
    pack_header,
    pack_hello,
    pack_progress,
    pack_refusal,
    pack_report,
    pack_welcome,
)
from shmq.store.lineage.epochs import Epoch

SECRET = b"what both hosts know"
UNTIL_MS = 5_000
PLAIN = ("10.0.0.9 is a stock peer", "name it")
MASTER = Side("c", "b", "the-master", "log", 1 << 20, 0, 100, (Epoch(1, 0), Epoch(2, 50)))
SLAVE = msgspec.structs.replace(MASTER, store="the-slave")


def nonce(number: int) -> bytes:
    return bytes([number]) * NONCE_BYTES


def master_end(secret: bytes = SECRET, me: Side = MASTER, number: int = 1) -> MasterHandshake:
    return MasterHandshake(secret, me, nonce(number), UNTIL_MS, PLAIN)


def slave_end(secret: bytes = SECRET, me: Side = SLAVE, number: int = 2) -> SlaveHandshake:
    return SlaveHandshake(secret, me, nonce(number), UNTIL_MS, PLAIN)


def talk(slave: SlaveHandshake, master: MasterHandshake) -> tuple[list[bytes], list[bytes]]:
    """Carry bytes until neither has any; return what each said, one after the other."""
    said: tuple[list[bytes], list[bytes]] = ([], [])
    while True:
        words = slave.take()
        master.feed(words)
        answer = master.take()
        slave.feed(answer)
        if not words and not answer:
            return said
        said[0].append(words)
        said[1].append(answer)


def test_who_knows_the_secret_is_proven_on_both_sides() -> None:
    slave, master = slave_end(), master_end()
    talk(slave, master)
    assert slave.proven is not None and (slave.proven.store, slave.proven.epoch) == ("the-master", 2)
    assert master.proven is not None and master.proven.store == "the-slave"
    assert not slave.closed and not master.closed and not slave.rest and not master.rest


def test_bytes_one_by_one_prove_the_same() -> None:
    said, answers = talk(slave_end(), master_end())
    slave, master = slave_end(), master_end()
    for byte in b"".join(said):
        master.feed(bytes([byte]))
    for word in answers:
        slave.take()
        for byte in word:
            slave.feed(bytes([byte]))
    assert master.proven is not None and slave.proven is not None


@pytest.mark.parametrize("turn", [0, 1])
def test_every_truncation_proves_nothing_and_is_dropped_in_time(turn: int) -> None:
    said, answers = talk(slave_end(), master_end())
    for cut in range(len(said[turn])):
        master = master_end()
        for whole in said[:turn]:
            master.feed(whole)
        master.feed(said[turn][:cut])
        master.tick(UNTIL_MS - 1)
        assert not master.is_over
        master.tick(UNTIL_MS)
        assert master.closed and master.cure and master.proven is None
    for cut in range(len(answers[turn])):
        slave = slave_end()
        for whole in answers[:turn]:
            slave.feed(whole)
        slave.feed(answers[turn][:cut])
        slave.tick(UNTIL_MS)
        assert slave.closed and slave.proven is None


@pytest.mark.parametrize("turn", [0, 1])
def test_every_flipped_bit_proves_nothing(turn: int) -> None:
    said, answers = talk(slave_end(), master_end())
    for bit in range(8 * len(said[turn])):
        master = master_end()
        for number, word in enumerate(said[: turn + 1]):
            master.feed(flipped(word, bit) if number == turn else word)
        assert master.proven is None
        master.tick(UNTIL_MS)
        assert master.closed or turn == 0
    for bit in range(8 * len(answers[turn])):
        slave, master = slave_end(), master_end()
        for number in range(2):  # the master answers what the slave made of its flipped words
            master.feed(slave.take())
            answer = master.take()
            slave.feed(flipped(answer, bit) if number == turn else answer)
        slave.tick(UNTIL_MS)
        assert slave.closed and slave.proven is None
        assert turn == 1 or master.proven is None


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_what_was_recorded_is_good_for_no_other_connection() -> None:
    said, answers = talk(slave_end(), master_end())
    master, slave = master_end(number=3), slave_end(number=4)
    for word in said:
        master.feed(word)
    for word in answers:
        slave.feed(word)
    assert master.proven is None and "does not know this host's secret" in master.closed
    assert slave.proven is None and "does not know this host's secret" in slave.closed


def test_own_words_that_come_back_prove_nothing() -> None:
    slave, master, other = slave_end(), master_end(), master_end(number=3)
    slave.feed(slave.take())
    slave.tick(UNTIL_MS)
    assert slave.proven is None and slave.closed
    master.feed(pack_report(AUTHENTICATION))
    claim = master.take()[12:]
    master.feed(pack_hello(claim) + bytes(32))
    assert master.proven is None and "our own words" in master.closed
    other.feed(pack_report(AUTHENTICATION))
    reflecting = slave_end()
    reflecting.feed(other.take())
    words = reflecting.take()[8:]
    reflecting.feed(pack_header(AUTHENTICATION, 32) + words[-32:])  # the slave's own proof, as if it were the master's
    assert reflecting.proven is None and "does not know" in reflecting.closed


def test_another_secret_is_refused_with_the_reason() -> None:
    slave, master = slave_end(secret=b"another one, as long"), master_end()
    talk(slave, master)
    assert master.proven is None and master.closed == "the slave does not know this host's secret"
    assert "--ha-secret-file" in master.cure
    slave.feed(pack_refusal(master.closed, master.cure))
    assert slave.closed == "the master refuses this slave: the slave does not know this host's secret"
    assert slave.cure == master.cure


@pytest.mark.parametrize(("field", "what"), [("cluster", "cluster"), ("broker", "broker")])
def test_a_foreign_peer_is_refused_by_both_with_the_reason(field: str, what: str) -> None:
    foreign = msgspec.structs.replace(SLAVE, **{field: "other"})
    slave, master = slave_end(me=foreign), master_end()
    talk(slave, master)
    assert f"the master is of the {what}" in slave.closed and slave.proven is None
    assert f"the slave is of the {what} 'other'" in master.closed and master.proven is None
    assert slave.cure and master.cure


def test_a_slave_that_proves_nothing_is_refused() -> None:
    greeting, stock = master_end(), master_end()
    greeting.feed(pack_report(GREETING))
    assert "proves no secret" in greeting.closed and "--ha-secret-file" in greeting.cure
    stock.feed(pack_report(4711))
    assert (stock.closed, stock.cure) == PLAIN


def test_a_stock_slave_that_is_named_is_served_and_none_of_its_bytes_is_lost() -> None:
    master = MasterHandshake(SECRET, MASTER, nonce(1), UNTIL_MS, None)
    master.feed(pack_report(100) + pack_report(200)[:3])
    assert master.is_plain and master.proven is None and master.rest == pack_report(100) + pack_report(200)[:3]


def test_a_stock_master_is_followed_only_if_it_is_named() -> None:
    heartbeat = pack_header(AUTHENTICATION, 0)
    slave = slave_end()
    assert slave.take() == pack_report(AUTHENTICATION)
    slave.feed(heartbeat)
    assert (slave.closed, slave.cure) == PLAIN
    named = SlaveHandshake(SECRET, SLAVE, nonce(2), UNTIL_MS, None)
    named.feed(heartbeat)
    assert named.is_plain and named.proven is None


def test_a_master_without_a_secret_says_so_to_a_slave_with_one() -> None:
    link, slave = LeaderLink(0), slave_end()
    link.feed(slave.take(), LogSpan(0, 100, 1 << 20), 0)
    assert "has none" in link.closed and not link.is_stock
    slave.feed(pack_refusal(link.closed, link.cure))
    assert "has none" in slave.closed and "--ha-secret-file" in slave.cure


def test_more_bytes_than_a_claim_has_are_not_held() -> None:
    master = master_end()
    master.feed(pack_report(AUTHENTICATION) + pack_hello(b"x" * 2048)[:BYTES_MAX])
    assert not master.is_over
    master.feed(bytes(BYTES_MAX))
    assert master.closed and not master.rest


def test_who_is_greeted_has_to_be_who_was_proven() -> None:
    slave, master = slave_end(), master_end()
    talk(slave, master)
    link = LeaderLink(0, me=MASTER, proven=master.proven)
    told = msgspec.structs.replace(SLAVE, epochs=(Epoch(9, 0),))
    link.feed(pack_report(GREETING) + pack_hello(side_bytes(told)) + pack_progress(0, 0), LogSpan(0, 100, 1 << 20), 0)
    assert "has proven" in link.closed and link.slave is None
    follower = FollowerLink(100, 0, me=SLAVE, greets=True, proven=slave.proven)
    follower.feed(pack_welcome(side_bytes(msgspec.structs.replace(MASTER, store="another"))), 0)
    assert "has proven" in follower.closed and follower.master is None


def test_a_proven_master_of_an_older_epoch_is_refused_and_hears_of_the_newer_one() -> None:
    newer = msgspec.structs.replace(SLAVE, epochs=(Epoch(1, 0), Epoch(3, 100)))
    slave, master = slave_end(me=newer), master_end()
    talk(slave, master)
    follower = FollowerLink(100, 0, me=newer, greets=True, proven=slave.proven)
    link = LeaderLink(0, me=MASTER, proven=master.proven)
    span = LogSpan(0, 100, 1 << 20)
    link.feed(follower.take(), span, 0)
    welcome = link.next_shipment(span, 0)
    assert welcome is not None
    follower.feed(welcome.header, 0)
    assert follower.state is State.OLDER_MASTER and "it was replaced" in follower.closed
    link.feed(follower.take(), span, 0)
    assert link.state is State.OLDER_MASTER and link.slave is not None and link.slave.epoch == 3
