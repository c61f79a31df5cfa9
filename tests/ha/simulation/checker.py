"""What must hold in every schedule; it sees everything, as no broker in the schedule does.

    two-epochs      no position is confirmed, or under synchronous replication seen, with two different records
    lost            a confirmed record is in the log of every later leader; what was acknowledged is in the last one's
    not-in-sync     what is confirmed is on the disk of every broker that can be elected, at every moment
    one-election    an epoch begins above all that were before
    deposed         no broker takes the place of a leader that has a lease, but by force
    handed-over     the one that is handed the place has on its disk what was acknowledged
    unequal         one position holds one record in one epoch, in whichever log
    after-fence     under asynchronous replication no receipt is given in an epoch after the next has begun
    uncounted       what of an asynchronous acknowledgement is lost was in a tail that a broker kept and counted
    acknowledged    a candidate acknowledges nothing
    promised        one that promised does not campaign
    names           the names never lead from a newer epoch to an older one
    unbegun         nothing is allowed or confirmed in an epoch that its broker has not begun
    again           who gave its place back is not elected again before the others had time to be, but by force
    blocked         while one disk takes nothing, and all other faults are over, another broker leads and confirms
    stuck           when all faults are over, one leads, is not fenced, and all are in sync

`blocked` holds where another broker could be elected: by the set of the newest epoch that a broker has begun, or by
what the store has. An epoch that was not begun takes this from no broker, except where the broker that was elected has
ended before it gave its place back: it alone knew which set it had replaced. That the other one confirms holds where
`in_sync_min` disks take something.

Excepted: what a promotion by force gave up, which is counted, and receipts of a host whose clock stood still.
"""

from __future__ import annotations

from shmq.daemon.ha.election.coordination import View
from tests.ha.simulation.coordination_model import CoordinationModel
from tests.ha.simulation.log_model import LogModel, Record, epoch_of


class Violation(AssertionError):
    """A rule was broken."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Checker:
    """The checks of one schedule."""

    def __init__(self, store: CoordinationModel, *, is_sync: bool) -> None:
        self.is_sync = is_sync
        self.confirmed: list[Record] = []
        self.acknowledged: dict[Record, int] = {}  # its position
        self.tails: set[Record] = set()  # cut off, or lost with a disk, and counted
        self.given_up = 0  # by force
        self.late_receipts = 0  # of hosts whose clock stood still
        self.written: dict[tuple[int, int], Record] = {}
        self.disks: dict[str, LogModel] = {}
        self.electable = frozenset[str]()  # by the newest epoch that was begun; empty: every store
        self.given_back = 0  # places of brokers that could not begin
        self._begun_epoch = 0
        self.names: int = 0
        self._store = store
        self._view = store.view
        self._forced_epoch = 0
        self._forced_in_store = 0  # nothing is given up before its leader begins

    def stored(self, view: View) -> None:
        """Something was written into the store."""
        before, self._view = self._view, view
        if view.state is not None and view.state.epoch == self._begun_epoch:
            self.electable = view.state.in_sync
        if view.state is not None and view.state != before.state and view.state.why == "forced by hand":
            self._forced_in_store = view.state.epoch
        if self._forced_in_store > self._forced_epoch:
            return
        if before.leader is not None and view.leader is not None and before.leader.lease != view.leader.lease:
            raise Violation("deposed", f"{view.leader.uuid} takes the place of {before.leader.uuid}")
        if view.state is None or view.state == before.state:
            return
        is_elected = view.leader is not None and view.leader != before.leader
        if is_elected and before.state is not None and view.state.epoch <= before.state.epoch:
            raise Violation("one-election", f"epoch {view.state.epoch} begins after {before.state.epoch}")
        if self.is_sync and view.state.epoch >= self._forced_epoch:
            self._look_at_disks(len(self.confirmed))
        if before.leader is not None and view.leader is None and view.state.successor:
            self._look_at_hand_over(before.leader.uuid, view.state.successor)

    def _look_at_hand_over(self, leader: str, successor: str) -> None:
        position = self.disks[successor].durable
        tail = self.disks[leader].records[position:]
        if any(record in self.acknowledged for record in tail):
            raise Violation("handed-over", f"{successor} has {position} on its disk, {leader} {position + len(tail)}")

    def confirms(self, epoch: int, log: LogModel, begin: int, end: int, *, why: str = "confirmed") -> None:
        """A broker confirms, or shows, a part of its log."""
        known = self.confirmed
        for position in range(begin, end):
            record = log.records[position]
            if position < len(known):
                if known[position] != record:
                    if epoch < self._forced_epoch:
                        self.given_up += 1
                        continue
                    raise Violation("two-epochs", f"{position} was {known[position]:x}, and is {why} as {record:x}")
            else:
                if epoch < self._forced_epoch:
                    self.given_up += 1
                    return
                if position > len(known):
                    raise Violation("two-epochs", f"{position} is {why} before {len(known)}")
                known.append(record)
        state = self._store.state
        if why == "confirmed" and state is not None and state.epoch == epoch:
            self._look_at_disks(end)

    def _look_at_disks(self, end: int) -> None:
        assert self._store.state is not None
        for uuid in self._store.state.in_sync:
            log = self.disks.get(uuid)
            if log is not None and log.durable < end:
                raise Violation("not-in-sync", f"{end} is confirmed, {uuid} has {log.durable} on its disk")

    def writes(self, position: int, record: Record) -> None:
        """A record comes into a log."""
        known = self.written.setdefault((epoch_of(record), position), record)
        if known != record:
            raise Violation("unequal", f"at {position} {known:x} and {record:x}")

    def acknowledges(self, epoch: int, position: int, record: Record, *, clock_stood: bool) -> None:
        """A sender has its receipt."""
        state = self._store.state
        forced_epoch = max(self._forced_epoch, self._forced_in_store)
        if not self.is_sync and state is not None and state.epoch > epoch and epoch >= forced_epoch:
            if not clock_stood:
                raise Violation("after-fence", f"a receipt in epoch {epoch}, there is epoch {state.epoch}")
            self.late_receipts += 1
        if not (self.is_sync and epoch < forced_epoch):
            self.acknowledged[record] = position

    def leads(self, epoch: int, log: LogModel, why: str) -> None:
        """A broker begins an epoch."""
        if self._view.state is not None and self._view.state.epoch == epoch:
            self._begun_epoch, self.electable = epoch, self._view.state.in_sync
        if why == "forced by hand" or self._forced_in_store > self._forced_epoch:
            self._forced_epoch = max(self._forced_epoch, epoch)
            known = self.confirmed
            same = 0
            while same < min(len(known), log.end) and known[same] == log.records[same]:
                same += 1
            self.given_up += len(known) - same
            gone = set(known[same:]) - set(log.records)
            del known[same:]
            for record in gone:
                self.acknowledged.pop(record, None)
            if self.is_sync:
                here = set(log.records)
                for record in [record for record in self.acknowledged if record not in here]:
                    del self.acknowledged[record]
        elif self.is_sync and epoch >= self._forced_epoch and log.records[: len(self.confirmed)] != self.confirmed:
            raise Violation("lost", f"the leader of epoch {epoch} has not all of {len(self.confirmed)} confirmed")

    def gives_back(self, epoch: int) -> None:
        """A broker that was elected cannot begin its epoch: nothing was given up for it, if it was forced."""
        self.given_back += 1
        if self._forced_in_store == epoch:
            self._forced_in_store = self._forced_epoch

    def forgets(self, uuid: str) -> None:
        """A broker ends: if it was elected, and has not begun, it does not know any more who could be before."""
        state = self._view.state
        if state is not None and state.epoch > self._begun_epoch and state.in_sync == {uuid}:
            self.electable = state.in_sync

    def can_be_elected(self, uuid: str) -> bool:
        """Whether a store has a right to be elected."""
        in_store = self._view.state.in_sync if self._view.state is not None else frozenset()
        return not self.electable or not in_store or uuid in self.electable | in_store

    def cuts(self, tail: list[Record], position: int | None = None, epoch: int = 0) -> None:
        """A log loses its end, which is kept beside it, or is gone with the disk and known to be.

        Args:
            position: of the tail, where it was cut off for a leader.
        """
        if self.is_sync and position is not None and epoch >= self._forced_epoch:
            confirmed = self.confirmed[position : position + len(tail)]
            if any(one == other for one, other in zip(confirmed, tail, strict=False)):
                raise Violation("lost", f"what is confirmed at {position} is cut off in epoch {epoch}")
        self.tails.update(tail)

    def routes(self, epoch: int) -> None:
        """The names lead to the leader of this epoch."""
        if epoch < self.names:
            raise Violation("names", f"they lead to epoch {epoch} after {self.names}")
        self.names = epoch

    def ends(self, log: LogModel) -> int:
        """Everything is over; return how many acknowledged records of an asynchronous group were lost, and counted."""
        lost = 0
        for record, position in self.acknowledged.items():
            if position < log.end and log.records[position] == record:
                continue
            if self.is_sync:
                raise Violation("lost", f"{record:x} at {position} was acknowledged")
            if record not in self.tails:
                raise Violation("uncounted", f"{record:x} at {position} is gone, and in no tail")
            lost += 1
        return lost
