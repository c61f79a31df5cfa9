"""Two logs are compared but for what is not read, and a store is proven, for tests of a slave's faults.

A hole is the place of a `reserve()` whose owner was evicted; he may have written into its body since, so its bytes say
nothing. Neither do those behind a BLANK, which fills a file up.
"""

from __future__ import annotations

from pathlib import Path

from shmq.record import BLANK_MAGIC, HOLE_TOPIC, LENGTH_AND_MAGIC
from shmq.shm.core import record_decode
from shmq.store.proof.store import Proof, prove_store
from shmq.testing import Broker
from tests.ha.pair import log_of, settled_end
from tests.tools.store.conftest import end_in_order

BODY_AT = 88  # in a record whose two hosts have IPv4 addresses, as those of a hole have


def masked(log: bytes, file_bytes: int) -> bytes:
    """A log from its first record on, with zeros where nothing is read."""
    found, at = bytearray(log), 0
    while at < len(log):
        size, magic = LENGTH_AND_MAGIC.unpack_from(log, at)
        if magic == BLANK_MAGIC:
            behind = at - at % file_bytes + file_bytes
            found[at + LENGTH_AND_MAGIC.size : behind] = bytes(behind - at - LENGTH_AND_MAGIC.size)
            at = behind
            continue
        assert size > 0, at
        record = log[at : at + size]
        if HOLE_TOPIC in record and (fields := record_decode(record))["topic"] == HOLE_TOPIC:
            found[at + BODY_AT : at + BODY_AT + len(fields["body"])] = bytes(len(fields["body"]))
        at += size
    return bytes(found[: len(log)])


def assert_equal_but_for_holes(master: Broker, slave: Broker, file_bytes: int) -> int:
    """Wait until the slave has everything, and hold every byte that is read against the master's; return the end."""
    end = settled_end(master, slave)
    theirs, ours = (log_of(broker, end) for broker in (master, slave))
    assert ours == theirs or masked(ours, file_bytes) == masked(theirs, file_bytes)
    return end


def files_of(store: Path) -> dict[str, bytes]:
    """The log files of a store, whole."""
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir() if path.name.isdecimal()}


def prove(broker: Broker) -> Proof:
    """Stop a broker in order and have its store verified."""
    end_in_order(broker)
    proof = prove_store(broker.store)
    assert proof.settled and proof.findings.disagreements == [], proof.findings.disagreements
    return proof
