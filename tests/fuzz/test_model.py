"""Random sequences of operations, deaths included, end exactly where a model of the log says they must.

The model knows positions, offsets, frames, claims and topics, and nothing of how they are kept. model_driver.c runs the
core; every answer it gives and every word of its state is predicted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile

from core_build import LONG, PLAIN, POINTS, program
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

FILE_BYTES, FILES, FRAMES, FRAME_UNITS = 64 << 10, 4, 8, 204
QUEUES, TOPIC_MAX, QUEUE_MAX, EXTENTS = 4, 8, 24, 4
INLINE_BYTES_MAX, BLANK, HEAD, HOLE = 16 << 10, 8, 88, 128
RECORD_WITHOUT_BODY = HEAD + 1 + len("alpha") + 2 + 20
OK, WOULD_BLOCK, LOG_FULL, UNITS_FULL, TABLE_FULL, NO_TOPIC, EVICTED = 0, 1, 3, 4, 9, 7, 19

queues = st.integers(0, QUEUES - 1)
bodies = st.one_of(st.integers(0, 300), st.integers(300, 5000), st.integers(16_000, 40_000))
names = st.sampled_from(["alpha", "beta", "gamma", "delta", "epsilon"])


class Driver:
    """One core in a process of its own; `ask` sends a command and returns the words of the answer."""

    def __init__(self) -> None:
        executable = program("model", ("fuzz/model_driver.c", "crash/check.c", "crash/arena.c"), (*PLAIN, POINTS))
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(prefix="shmq-model-", dir=memory)
        self.process = subprocess.Popen(
            [executable, str(FILE_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SHMQ_ARENA_ROOT": self.folder.name},
        )

    def ask(self, *words: object) -> list[str]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the core died of {words}"
        return answer.split()

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(timeout=60) == 0
        self.folder.cleanup()


class LogModel:
    """Where records go: positions, offsets and frames."""

    def __init__(self) -> None:
        self.end = 0
        self.offset_max = [0] * QUEUES
        self.persisted = [0] * QUEUES
        self.frames: set[tuple[int, int]] = set()

    def place(self, record_bytes: int, wait: int) -> tuple[int, list[str]]:
        """Find room, roll over if need be; returns the status and the named points passed.

        No keeper beats here, so an append that may wait fails at once: the log is full.
        """
        file_end = (self.end // FILE_BYTES + 1) * FILE_BYTES
        if self.end + record_bytes + BLANK <= file_end:
            return OK, []
        if file_end >= FILES * FILE_BYTES:
            return LOG_FULL if wait else WOULD_BLOCK, []
        self.end = file_end
        return OK, ["roll.blank", "roll.moved"]

    def ensure(self, queue: int, count: int) -> tuple[int, list[tuple[int, int]]]:
        """Take the frames that the next `count` units need; returns the status and those that were taken."""
        first = self.offset_max[queue]
        taken = []
        for ordinal in range(first // FRAME_UNITS, (first + count - 1) // FRAME_UNITS + 1):
            if (queue, ordinal) in self.frames:
                continue
            if len(self.frames) == FRAMES:
                return UNITS_FULL, taken
            self.frames.add((queue, ordinal))
            taken.append((queue, ordinal))
        return OK, taken

    def commit(self, queue: int, record_bytes: int, count: int = 1) -> tuple[int, int]:
        offset, position = self.offset_max[queue], self.end
        self.end += record_bytes * count
        self.offset_max[queue] += count
        return offset, position


class CoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.driver = Driver()
        self.log = LogModel()
        self.claim: tuple[int, int, int] | None = None  # queue, longest body, bytes
        self.evicted = False
        self.identity = 0
        self.topics: dict[str, tuple[bool, list[int]]] = {"alpha": (True, list(range(QUEUES)))}
        self.extents = {"alpha": 1}
        self.queue_count = QUEUES

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            assert self.driver.ask("check") == ["0"]
            self.driver.close()

    def next_identity(self, count: int = 1) -> int:
        self.identity += count
        return self.identity - count + 1

    # ---- appending -------------------------------------------------------------------------------------
    def admit(self, wait: int) -> int:
        """What an open claim does to another process' append."""
        if self.claim is None:
            return OK
        if wait == 0:
            return WOULD_BLOCK
        self.log.end += self.claim[2]  # the hole
        self.claim, self.evicted = None, True
        return OK

    def expect_append(self, queue: int, body_bytes: int, wait: int) -> list[int]:
        record_bytes = RECORD_WITHOUT_BODY + body_bytes
        claimed = record_bytes > INLINE_BYTES_MAX
        status = self.admit(wait)
        if status == OK:
            status, _ = self.log.place(HOLE + body_bytes if claimed else record_bytes, wait)
        if status == OK:
            status, _ = self.log.ensure(queue, 1)
        return [status, 0, 0] if status != OK else [OK, *self.log.commit(queue, record_bytes)]

    @rule(queue=queues, body_bytes=bodies)
    def append(self, queue: int, body_bytes: int) -> None:
        answer = self.driver.ask("append", queue, body_bytes, self.next_identity(), 0)
        assert list(map(int, answer)) == self.expect_append(queue, body_bytes, 0)

    @rule(queue=queues, count=st.integers(1, 290), body_bytes=st.integers(0, 60))
    def append_batch(self, queue: int, count: int, body_bytes: int) -> None:
        answer = self.driver.ask("batch", queue, count, body_bytes, self.next_identity(count))
        record_bytes = RECORD_WITHOUT_BODY + body_bytes
        status = self.admit(0)
        if status == OK:
            status, _ = self.log.place(record_bytes * count, 0)
        if status == OK:
            status, _ = self.log.ensure(queue, count)
        expected = [status, 0, 0] if status != OK else [OK, *self.log.commit(queue, record_bytes, count)]
        assert list(map(int, answer)) == expected

    @rule(queue=queues, body_bytes=st.integers(0, 9000), nth=st.integers(0, 12))
    def die_while_appending(self, queue: int, body_bytes: int, nth: int) -> None:
        (name,) = self.driver.ask("die", queue, body_bytes, self.next_identity(), nth)
        if self.claim is not None:
            assert name == "refused"
            return
        record_bytes = RECORD_WITHOUT_BODY + body_bytes
        before = self.log.end
        status, points = self.log.place(record_bytes, 0)
        taken: list[tuple[int, int]] = []
        if status == OK:
            status, taken = self.log.ensure(queue, 1)
            points += ["frame.take.intent", "frame.take.link", "frame.take.linked"] * len(taken)
        if status == OK:
            points += ["append.intent", "append.copied", "append.committed", "append.published"]
        expected = points[nth] if nth < len(points) else "alive" if status == OK else "refused"
        assert name == expected
        if expected == "roll.blank":
            self.log.end = before
        if expected in ("roll.blank", "roll.moved", "frame.take.intent", "frame.take.link"):
            self.log.frames.difference_update(taken)
        if expected in ("append.committed", "append.published", "alive"):
            self.log.commit(queue, record_bytes)

    # ---- claims ------------------------------------------------------------------------------------------
    @precondition(lambda self: self.claim is None and not self.evicted)
    @rule(queue=queues, body_bytes=st.integers(0, 20_000), tail_bytes=st.integers(28, 200))
    def open_claim(self, queue: int, body_bytes: int, tail_bytes: int) -> None:
        status, position = map(int, self.driver.ask("open", queue, body_bytes, tail_bytes, 0))
        claim_bytes = max(HEAD + body_bytes + tail_bytes, HOLE + body_bytes)
        expected, _ = self.log.place(claim_bytes, 0)
        assert status == expected
        if status == OK:
            assert position == self.log.end
            self.claim = (queue, body_bytes, claim_bytes)

    @precondition(lambda self: self.claim is not None)
    @rule(queue=queues, body_bytes=st.integers(0, 300))
    def append_beside_a_slow_claim(self, queue: int, body_bytes: int) -> None:
        self.driver.ask("age")
        answer = self.driver.ask("append", queue, body_bytes, self.next_identity(), 1000)
        assert list(map(int, answer)) == self.expect_append(queue, body_bytes, 1000)

    @precondition(lambda self: self.claim is not None or self.evicted)
    @rule(share=st.floats(0, 1))
    def commit_claim(self, share: float) -> None:
        queue, longest, _ = self.claim or (0, 0, 0)
        body_bytes = int(longest * share)
        answer = list(map(int, self.driver.ask("commit", body_bytes, self.next_identity())))
        if self.evicted:
            assert answer == [EVICTED, 0, 0]
            self.evicted = False
            return
        status, _ = self.log.ensure(queue, 1)
        if status != OK:
            assert answer == [status, 0, 0]
            assert self.driver.ask("abort") == ["0"]
        else:
            assert answer == [OK, *self.log.commit(queue, RECORD_WITHOUT_BODY + body_bytes)]
        self.claim = None

    @precondition(lambda self: self.claim is not None or self.evicted)
    @rule()
    def abort_claim(self) -> None:
        assert self.driver.ask("abort") == ["0"]
        self.claim, self.evicted = None, False

    # ---- frames ------------------------------------------------------------------------------------------
    @rule(queue=queues, share=st.floats(0, 1), ordinal=st.integers(0, 3), count=st.integers(1, 4))
    def give_frames_back(self, queue: int, share: float, ordinal: int, count: int) -> None:
        self.log.persisted[queue] = max(self.log.persisted[queue], int(self.log.offset_max[queue] * share))
        self.driver.ask("persist", queue, self.log.persisted[queue])
        full = [n for n in range(ordinal, ordinal + count) if (n + 1) * FRAME_UNITS <= self.log.persisted[queue]]
        gone = {(queue, n) for n in full} & self.log.frames
        assert self.driver.ask("release", queue, ordinal, count) == [str(len(gone))]
        self.log.frames -= gone

    @rule(queue=queues, first=st.integers(0, 900), count=st.integers(1, 900))
    def read_units(self, queue: int, first: int, count: int) -> None:
        offset = first
        while (
            offset < min(first + count, self.log.offset_max[queue])
            and (queue, offset // FRAME_UNITS) in self.log.frames
        ):
            offset += 1
        assert self.driver.ask("units", queue, first, count) == [str(offset - first)]

    # ---- topics ------------------------------------------------------------------------------------------
    @rule(name=names, count=st.integers(1, 9))
    def put_topic(self, name: str, count: int) -> None:
        live, have = self.topics.get(name, (False, []))
        have = have if live else []
        extents = self.extents.get(name, 0) if live else 0
        (answer,) = self.driver.ask("topic", name, count)
        missing = count - len(have)
        if missing > 0 and (extents == EXTENTS or missing > QUEUE_MAX - self.queue_count):
            assert int(answer) == TABLE_FULL
            return
        assert int(answer) == OK
        if missing > 0:
            have = [*have, *range(self.queue_count, self.queue_count + missing)]
            self.queue_count += missing
            extents += 1
        self.topics[name], self.extents[name] = (True, have), extents

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        live, have = self.topics.get(name, (False, []))
        assert self.driver.ask("delete", name) == [str(OK if live else NO_TOPIC)]
        if name in self.topics:
            self.topics[name] = (False, have)

    @rule(name=names, queue_id=st.integers(0, 10))
    def find_queue(self, name: str, queue_id: int) -> None:
        live, have = self.topics.get(name, (False, []))
        index = list(self.topics).index(name) if live else -1
        assert self.driver.ask("find", name) == [str(index)]
        queue = have[queue_id] if live and queue_id < len(have) else -1
        assert self.driver.ask("queue", name, queue_id) == [str(queue)]

    # ---- the rest ----------------------------------------------------------------------------------------
    @rule()
    def flush(self) -> None:
        assert self.driver.ask("flush") == [str(OK)]

    @precondition(lambda self: self.claim is None and not self.evicted)
    @rule()
    def attach_again(self) -> None:
        assert self.driver.ask("reattach") == ["0"]

    @invariant()
    def state_is_as_predicted(self) -> None:
        if hasattr(self, "driver"):
            assert list(map(int, self.driver.ask("state"))) == [self.log.end, *self.log.offset_max]


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=3_000 if LONG else 200,
    stateful_step_count=60 if LONG else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
