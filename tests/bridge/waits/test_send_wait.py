"""A send that waited for its turn too long is refused with RocketMQ's words, and only such a one."""

import pytest

from shmq.daemon.bridge.send_wait import ReadTimes, too_late
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.header import encode_command
from tests.bridge.live_bridge import RawPeer, raw_peer, running

# DELAY=0 is no delay, but nothing the short way of plain sends serves.
SEND = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "DELAY\x010\x02"}


def test_a_frame_is_as_old_as_the_bytes_that_completed_it() -> None:
    times = ReadTimes()
    times.read(10, 1.0)
    times.read(10, 2.0)
    times.read(10, 3.0)
    assert times.taken(25) == 1.0  # five bytes of the first read
    assert times.taken(20) == 1.0
    assert times.taken(15) == 2.0
    assert times.taken(0) == 3.0
    times.read(4, 9.0)
    assert times.taken(0) == 9.0


def test_time_in_which_the_peer_did_not_read_its_answers_does_not_count() -> None:
    times = ReadTimes()
    times.read(10, 1.0)
    times.restart(50.0)
    assert times.taken(5) == 50.0


def test_the_answer_is_rocketmqs_with_both_numbers() -> None:
    answer = too_late(Command(code=310, opaque=7), 0.3456, 12)
    assert (answer.code, answer.opaque) == (Response.SYSTEM_BUSY, 7)
    assert answer.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 346ms, size of queue: 12"
    )


def codes_of(peer: RawPeer, count: int) -> list[tuple[int, str]]:
    """Code and remark of each answer in the order of the requests: what finds no room is answered after the others."""
    replies = [reply for reply in (peer.take() for _ in range(count)) if reply is not None]
    return [(reply.code, reply.remark or "") for reply in sorted(replies, key=lambda reply: reply.opaque)]


def ask_at_once(peer: RawPeer, ext: dict[str, str], count: int, code: int, flag: int = 0) -> None:
    commands = [Command(code=code, opaque=number, ext=dict(ext), body=b"x", flag=flag) for number in range(count)]
    peer.send(b"".join(map(encode_command, commands)))


@pytest.mark.parametrize("limit", [0.0, 3600.0])
def test_only_what_waited_for_a_later_turn_is_refused(limit: float) -> None:
    # With no patience at all the first turn is served all the same: there was no queue in front of it.
    limits = {"send_wait_max": limit, "commands_per_turn": 4}
    with running(tcp=True, limits=limits) as bridge, raw_peer(bridge, tcp=True) as peer:
        ask_at_once(peer, SEND, 12, Request.SEND_MESSAGE_V2)
        answers = codes_of(peer, 12)
        assert len(answers) == 12 and Response.SYSTEM_BUSY not in [code for code, _ in answers[:4]]
        refused = [remark for code, remark in answers if code == Response.SYSTEM_BUSY]
        assert bool(refused) == (limit == 0.0), answers
        assert all(remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy") for remark in refused)
        ask_at_once(peer, {"topic": "TBW102", "queueId": "0"}, 12, Request.GET_MAX_OFFSET)
        assert [code for code, _ in codes_of(peer, 12)] == [Response.SUCCESS] * 12


def test_a_oneway_send_that_is_too_late_is_dropped_in_silence() -> None:
    limits = {"send_wait_max": 0.0, "commands_per_turn": 1}
    with running(tcp=True, limits=limits) as bridge, raw_peer(bridge, tcp=True) as peer:
        ask_at_once(peer, SEND, 5, Request.SEND_MESSAGE_V2, FLAG_ONEWAY)
        assert peer.ask(Request.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"}).opaque == 1
