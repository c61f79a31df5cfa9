"""Two brokers meet: whether one may go on as the other's slave, and where its log has to be cut first.

Each side says who it is; both judge with the same function, so neither trusts the other's judgement.

    state          the slave                                                      what becomes of it
    FOLLOWING      its log is the beginning of the master's                       it is shipped what lies behind
    PARTED         it has records behind the newest common epoch, others than     it is cut there, the tail is kept
                   the master's
    FOREIGN        it is another cluster's, broker's or log's, or has no epoch    refused
                   in common
    AHEAD          of the newest epoch it has more than the master                refused: that lost its end
    OLDER_MASTER   it knows a newer epoch than the master's                       refused; the master fences itself
    BEHIND         retention has deleted on the master what it needs next         refused: empty its store
    OTHER_FILES    its log files have another size                                refused

A text, an id or a size that one side does not know is not compared. Epochs prove nothing of two logs that were never
switched, so the slave asks for its last record once more, and holds it against what comes (`LastRecord`): a stock
master, who says nothing of itself, is known by that alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from shmq.errors import ProtocolError
from shmq.store.lineage.epochs import FIRST, Epoch, check_epochs, common_end
from shmq.typed_json import decode_json

START_AGAIN = "stop the slave, move its store directory away, and start it again: it takes the whole log"
SIDE_BYTES_MAX = 256 << 10
_TEXT_CHARACTERS_MAX, _IN_SYNC_MIN_MAX, _POSITION_MAX = 255, 2, (1 << 63) - 1


class State(StrEnum):
    """How a slave stands to its master."""

    FOLLOWING = "following"
    PARTED = "parted"
    OVERTAKEN = "overtaken"
    FOREIGN = "foreign"
    AHEAD = "ahead"
    OLDER_MASTER = "older-master"
    BEHIND = "behind"
    OTHER_FILES = "other-files"

    @property
    def is_refusal(self) -> bool:
        """Whether nothing is shipped before an operator has done something."""
        return self not in (State.FOLLOWING, State.PARTED, State.OVERTAKEN)


class Side(msgspec.Struct, frozen=True):
    """What a broker says of itself and of its log.

    Attributes:
        store: id of its store directory; `log`: of the log that all its copies share.
        prompt: it waits for what its slaves have on their disks.
        leads: it takes messages itself.
        in_sync_min: on how many disks this log's masters have what they acknowledge; 0: they wait for no slave.
        empty: its log never had a record, so it is any log's beginning.
        is_aside: it follows, and takes no part in the election of its master.
    """

    cluster: str = ""
    broker: str = ""
    store: str = ""
    log: str = ""
    file_bytes: int = 0
    begin: int = 0
    end: int = 0
    epochs: tuple[Epoch, ...] = FIRST
    prompt: bool = False
    leads: bool = False
    in_sync_min: int = 0
    empty: bool = False
    is_aside: bool = False

    @property
    def epoch(self) -> int:
        """Its newest epoch."""
        return self.epochs[-1].number


class Verdict(NamedTuple):
    """What becomes of the slave; `cut` is where its log is to be cut."""

    state: State
    reason: str = ""
    cure: str = ""  # what the operator can do about it
    cut: int | None = None


class LastRecord(NamedTuple):
    """The last record of a slave's log; the master ships it once more before anything else."""

    log_position: int
    data: bytes

    def against(self, position: int, shipped: bytes | memoryview) -> Verdict:
        """Hold what the master has from a position on against what is here of it."""
        mine = self.data[max(position - self.log_position, 0) :][: len(shipped)]
        if shipped[: len(mine)] == mine:
            return Verdict(State.FOLLOWING)
        what = f"the record at {self.log_position}, this slave's last one, is another one on the master"
        return Verdict(State.FOREIGN, f"{what}: these are two logs", START_AGAIN)


def judge(slave: Side, master: Side) -> Verdict:
    """Say what becomes of a slave at a master, before anything is shipped."""
    for what, mine, theirs in (("cluster", slave.cluster, master.cluster), ("broker", slave.broker, master.broker)):
        if mine and theirs and mine != theirs:
            cure = f"give both hosts the same --{'name' if what == 'broker' else what}, or this slave its own master"
            return Verdict(State.FOREIGN, f"the slave is of the {what} {mine}, the master of {theirs}", cure)
    if slave.file_bytes and master.file_bytes and slave.file_bytes != master.file_bytes:
        return Verdict(
            State.OTHER_FILES,
            f"the master's log files have {master.file_bytes} bytes, this slave's {slave.file_bytes}",
            f"start this slave on an empty store with --file-size {master.file_bytes}",
        )
    if slave.empty:
        return Verdict(State.FOLLOWING)
    if slave.log and master.log and slave.log != master.log:
        what = f"the slave has a copy of log {slave.log}, the master's is {master.log}"
        return Verdict(State.FOREIGN, f"{what}: these are two logs", START_AGAIN)
    if slave.epoch > master.epoch:
        return Verdict(
            State.OLDER_MASTER,
            f"the slave knows epoch {slave.epoch}, the master's is {master.epoch}: it was replaced",
            "start that master again as a slave of the one that replaced it",
        )
    return _compare(slave, master)


def _compare(slave: Side, master: Side) -> Verdict:
    common = common_end(slave.epochs, slave.end, master.epochs, master.end)
    if common is None:
        return Verdict(State.FOREIGN, "the slave's log and the master's have no epoch in common", START_AGAIN)
    epoch, end = common
    if end < slave.end:
        lacks = f"the slave has the log up to {slave.end}, and shares epoch {epoch.number} with the master up to {end}"
        if epoch.number == slave.epoch == master.epoch:
            cure = f"find out which of the two has what was acknowledged; if it is the master: {START_AGAIN}"
            reason = f"{lacks}: they are not of one log, or the master has lost its end"
            return Verdict(State.AHEAD, reason, cure)
        if end < slave.begin:
            return Verdict(State.BEHIND, f"{lacks}, which retention has deleted here", START_AGAIN)
        return Verdict(
            State.PARTED, lacks, "it is cut there, what is cut off is kept, and it comes again by itself", end
        )
    if slave.end < master.begin:
        reason = f"the slave has the log up to {slave.end}, retention has left it from {master.begin}"
        if not slave.log or slave.log != master.log:  # a log is given up for no other one, and for none without a name
            return Verdict(State.BEHIND, reason, START_AGAIN)
        return Verdict(
            State.OVERTAKEN,
            reason,
            "what the master has deleted goes here, too, and it comes again by itself",
        )
    return Verdict(State.FOLLOWING)


def side_bytes(side: Side) -> bytes:
    """Return what goes over the wire."""
    return msgspec.json.encode(side)


def read_side(data: bytes) -> Side:
    """Read what `side_bytes` wrote.

    Raises:
        ProtocolError: it is no such text, or its numbers contradict each other.
    """
    try:
        side = decode_json(data, Side)
        check_epochs(side.epochs)
    except (ValueError, RecursionError) as error:  # msgspec's own are such
        raise ProtocolError(f"the peer does not say who it is: {error}") from error
    if side.epochs[-1].start > _POSITION_MAX:
        raise ProtocolError(f"the peer says that epoch {side.epoch} begins at {side.epochs[-1].start}")
    texts = (side.cluster, side.broker, side.store, side.log)
    if any(len(text) > _TEXT_CHARACTERS_MAX or not text.isprintable() for text in texts):
        raise ProtocolError("the peer has a name that is none")
    if not 0 <= side.in_sync_min <= _IN_SYNC_MIN_MAX:
        raise ProtocolError(f"the peer asks for {side.in_sync_min} disks")
    if side.file_bytes < 0 or not 0 <= side.begin <= side.end <= _POSITION_MAX:
        raise ProtocolError(
            f"the peer says that its log goes from {side.begin} to {side.end} in files of {side.file_bytes} bytes"
        )
    return side
