"""One round: a broker under load, a change of its store, its end, and a start on what is left.

running   load · the change, and a kill with it or a second after it, or none · it is known · stop · start · count
stopped   load · stop · the change · `shmq store verify` · start, refused or not · count

must hold    every acknowledged message is there with its body, or a log line names its position; no offset is given
             twice; what makes log bytes unreachable stops sends by the keeper's own beats, and no send is answered
             from then on; health is not OK from then on; a refused start names the file and its cure, and the cure
             works; `verify` finds what a start refuses; offsets that were committed do not go back
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shmq.errors import BrokerNotRunning, DamagedMessage, ShmqError
from shmq.figures.observer import Observer
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Verdict
from shmq.metrics.vital_signs import beats_of
from shmq.shm.counter_reader import open_counters
from shmq.testing import Broker
from shmq.tools.health.examine import examine
from tests.crash.history.history import body_of
from tests.deadline import attempts, eventually
from tests.keeper.live.changes import CHANGES, GROWTH, LOG, OF_FILES, Change, copy
from tests.keeper.live.witnesses import TOPICS, Acknowledged, Witnesses
from tests.shm.looking import looking
from tests.tools.shell import Shell
from tests.tools.store.conftest import end_in_order

FILE_BYTES = 256 << 10
KILLS = ("", "", "keeper before", "keeper", "keeper later", "bridge")
_LOOK_NS = 250_000_000  # the keeper looks at the files in its first round after so long
_BEATS_MOST = 4  # rounds of a living keeper that begin so long after the change, one of them with a look
_BEATS_OF_OTHERS = 400  # a round takes 5 ms at least, and a look at all files may need a second one, for units
_LOG_FILES = 4  # that the load fills before the change
_GROUP = "billing"
_LINES_TOLD = 60
_LOST_EVENTS = ("recovery.damage", "recovery.loss_accepted")
_POSITIONS = re.compile(r"log positions (\d+) to (\d+) are lost")


class Round:
    """One round; `wrong` holds what must not be.

    Args:
        is_running: whether the broker runs at the change.
    """

    def __init__(self, change: Change, kill: str, directory: Path, *, is_running: bool, seed: int) -> None:
        self.wrong: list[str] = []
        self._change, self._kill, self._is_running, self._seed = change, kill, is_running, seed
        self._chance = random.Random(seed)
        self._directory = directory
        directory.mkdir()
        self._acknowledged: list[Acknowledged] = []
        self._committed: dict[int, int] = {}
        self._end: int | None = None  # of the log, two beats after sends had stopped
        self._spare = directory / "spare"  # what was there before a change of a stopped store
        self._changed_path = directory
        self._finds_something = False
        self._is_resized = change.name in ("truncated", "grown")
        self._is_truncation = change.name in ("truncated", "replaced by an older copy")

    def __str__(self) -> str:
        when = f"running, {self._kill or 'nothing'} killed" if self._is_running else "stopped"
        return f"{self._seed}: {self._change.target} {self._change.name}, {when}"

    def run(self) -> None:
        """Live it."""
        flush = self._chance.choice(("async", "sync"))
        with Broker(tcp=True, file_bytes=FILE_BYTES, default_queues=2, flush=flush, log_format="json") as broker:
            try:
                self._live(broker)
            except (AssertionError, ShmqError, OSError) as error:
                self._fail(f"{type(error).__name__}: {error}")
            if self.wrong:
                self.wrong += broker.log.splitlines()[-_LINES_TOLD:]

    def _fail(self, what: str) -> None:
        self.wrong.append(f"{self}: {what}")

    def _live(self, broker: Broker) -> None:
        local = [] if self._change.name == "truncated" and self._is_running else [broker.url] * 2
        witnesses = Witnesses([*local, f"rocketmq://{broker.name_server}"], self._directory, self._seed)
        try:
            self._load(broker, witnesses)
            if self._is_running:
                self._change_under(broker)
        finally:
            witnesses.end()
        self._acknowledged = witnesses.acknowledged()
        if self._is_running:
            self._check_silence()
            end_in_order(broker)
        else:
            end_in_order(broker)
        broker.kill_daemon()
        if not self._is_running:
            self._change_stopped(broker)
        self._start(broker)
        self._count(broker)

    def _load(self, broker: Broker, witnesses: Witnesses) -> None:
        eventually(witnesses.have_all_sent)
        with broker.connect() as mq, mq.pull_consumer(TOPICS[0], group=_GROUP) as consumer:
            older = self._directory / "older"
            if (path := self._path(broker)).exists() and self._change.target != "store":
                copy(path, older)
            eventually(lambda: mq._live().wire.store.log_end > _LOG_FILES * FILE_BYTES)
            self._committed = consumer.commit(offsets={0: 1, 1: 1})
            eventually(lambda: self._path(broker).exists())

    def _path(self, broker: Broker) -> Path:
        with looking(broker) as store:
            return self._change.path(broker.store, FILE_BYTES, store.log_end)

    # -- running

    def _change_under(self, broker: Broker) -> None:
        path = self._path(broker)
        status = path.stat()
        before = len(broker.log)
        if self._kill == "keeper before":
            _kill(broker, "keeper")
        CHANGES[self._change.name](path, self._directory / "older")
        changed_ns, written_ns = time.monotonic_ns(), time.time_ns()
        if self._kill in ("keeper", "bridge"):
            _kill(broker, self._kill)
        self._wait_until_known(broker, before, changed_ns, lambda: self._is_undone(path, status, written_ns))
        if self._kill == "keeper later":
            _kill(broker, "keeper")
            eventually(lambda: "keeper" in broker.processes)
        if self._change.is_of_access and path.exists():
            path.chmod(status.st_mode & 0o7777)
            os.chown(path, status.st_uid, status.st_gid)

    def _wait_until_known(self, broker: Broker, before: int, changed_ns: int, is_over: Callable[[], bool]) -> None:
        """Wait for it, and for so many beats of a living keeper at most.

        Args:
            is_over: whether the keeper has written the file anew for reasons of its own.
        """
        generation = broker._instance().generation  # type: ignore[union-attr]
        beats, over, last, beat, reason = 0, 0, 0, 0, 0
        most = _BEATS_MOST if self._change.is_of_log and not self._change.is_of_access else _BEATS_OF_OTHERS
        for _ in attempts(pause=0.002):
            instance = broker._instance()
            with contextlib.suppress(ShmqError), looking(broker) as store:  # the next ones are made meanwhile
                beat, reason = _keeper_beat_ns(broker), store.read_only
            if instance is None or instance.generation != generation or reason:
                break
            if beat not in (0, last) and beat > changed_ns + _LOOK_NS:
                last, beats = beat, beats + 1
                news = _news(broker.log[before:])
                over += is_over()
                if not news and over > 1:
                    return  # the keeper mends a file in one round, and says so in it
                was_alone = self._kill in ("keeper before", "keeper")
                if news and (self._change.is_of_access or not self._change.is_of_log or was_alone):
                    break
            if beats > most:
                if self._kill in ("", "bridge", "keeper later") or (
                    self._change.is_of_log and not self._change.is_of_access
                ):
                    self._fail(f"not known after {beats} beats")
                return
        # A look behind the end of an index file kills the keeper that is filling it; its successor builds it again.
        has_died = any(line.get("role") == "keeper" for line in _events(broker.log[before:]))
        if not self._kill.startswith("keeper") and not has_died:
            self._check_health(broker)
            if reason:
                self._end = _end_after_two_beats(broker)

    def _check_health(self, broker: Broker) -> None:
        with Observer(broker.url) as observer:
            report = examine(observer, Thresholds())
            if report.verdict is Verdict.OK:
                self._fail("health is OK though it is known")

    def _check_silence(self) -> None:
        late = [each for each in self._acknowledged if self._end is not None and each.log_position >= self._end]
        if late:
            self._fail(f"{len(late)} sends answered after sends had stopped: {late[0]}")

    def _is_undone(self, path: Path, before: os.stat_result, written_ns: int) -> bool:
        """Whether nothing of the change is left, though it was not reported: the keeper looks four times a second.

        It writes tables and the checkpoint as a whole, and a batch of sums over what was appended to them. A file that
        was written anew may have the inode of the one before the last.
        """
        try:
            now = path.lstat()
        except FileNotFoundError:
            return False
        if self._change.is_of_access:
            return (now.st_mode, now.st_uid) == (before.st_mode, before.st_uid)
        if self._change.target.startswith("config/"):
            return stat.S_ISREG(now.st_mode) and now.st_mtime_ns > written_ns
        if not self._is_resized or self._change.is_of_log:
            return False
        if self._change.target == "shmq.units" and self._change.name == "grown":
            return path.read_bytes()[before.st_size :][: len(GROWTH)] != GROWTH
        return self._change.target == "checkpoint" and now.st_size == before.st_size

    # -- stopped

    def _change_stopped(self, broker: Broker) -> None:
        last = max(each.log_position for each in self._acknowledged)
        path = self._change.path(broker.store, FILE_BYTES, last)
        if not path.exists():
            return
        copy(path, self._spare)
        CHANGES[self._change.name](path, self._directory / "older")
        self._changed_path = path
        self._finds_something = Shell().run("store", "verify", str(broker.store)).status != 0
        is_hurt = self._change.target in LOG and self._change.name in OF_FILES and "a copy" not in self._change.name
        if is_hurt and not self._finds_something and not self._is_same(path):
            self._fail("store verify finds nothing")

    def _is_same(self, path: Path) -> bool:
        return path.is_file() and not path.is_symlink() and path.read_bytes() == self._spare.read_bytes()

    # -- the next start

    def _start(self, broker: Broker) -> None:
        try:
            broker.start()
            return
        except BrokerNotRunning as error:
            refusal = f"{error} {error.hint}"
        if self._is_running:
            if not list(_lost(broker.log)):
                self._fail(f"refused, and nothing was said to be lost: {refusal[:600]}")
        elif not self._finds_something:
            self._fail(f"refused, and verify found nothing: {refusal[:600]}")
        accepted = re.search(r"--accept-loss ([0-9,-]+)", refusal)
        if accepted and (self._is_running or self._chance.random() < 0.5):
            broker._settings["accept_loss"] = accepted[1]
        elif self._is_running:
            self._fail(f"refused without a cure: {refusal[:600]}")
            return
        else:
            self._put_back()
        broker.start()

    def _put_back(self) -> None:
        path = self._changed_path
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        copy(self._spare, path)

    def _count(self, broker: Broker) -> None:
        """Compare what is stored with what was acknowledged."""
        stored: dict[tuple[str, int, int], bytes] = {}
        with broker.connect() as mq:
            for topic in TOPICS:
                with mq.pull_consumer(topic, group=_GROUP) as pull:
                    if topic == TOPICS[0]:
                        self._check_offsets(pull.committed())
                    for each in _all(pull):
                        stored[topic, each.queue_id, each.offset] = bytes(each.body)
            ranges = list(_lost(broker.log))
            missing = [
                each for each in self._acknowledged if not _is_stored(each, stored) and not _is_reported(each, ranges)
            ]
            if missing:
                told = f"{missing[0]} … {missing[-1]}"
                self._fail(f"{len(missing)} of {len(self._acknowledged)} acknowledged are gone in silence: {told}")
            if ranges and self._is_running and not self._is_truncation and not self._kill.startswith("keeper"):
                self._fail(f"lost though it was open: {ranges}")
            self._send_behind(mq)

    def _check_offsets(self, committed: dict[int, int]) -> None:
        behind = {queue: at for queue, at in self._committed.items() if committed.get(queue, -1) < at}
        is_said_in_docs = self._change.is_of_log or self._change.name == "replaced by an older copy"
        if behind and not is_said_in_docs:
            self._fail(f"committed {self._committed}, and it is {committed}")

    def _send_behind(self, mq: Any) -> None:
        for topic in TOPICS:
            for queue in range(2):
                given = [each.offset for each in self._acknowledged if (each.topic, each.queue_id) == (topic, queue)]
                receipt = mq.send(topic, b"behind", queue_id=queue)
                if given and receipt.offset <= max(given):
                    self._fail(f"offset {receipt.offset} of {topic}/{queue} was given twice")


def _is_stored(each: Acknowledged, stored: dict[tuple[str, int, int], bytes]) -> bool:
    body = stored.get((each.topic, each.queue_id, each.offset))
    return body is not None and body == body_of(each.name, len(body))


def _is_reported(each: Acknowledged, ranges: list[tuple[int, int]]) -> bool:
    return any(begin <= each.log_position < end for begin, end in ranges)


def _all(pull: Any) -> Iterator[Any]:
    """Every message; what is damaged is left out, once the keeper has seen how far it goes."""
    for queue in pull.queues():
        pull.seek(queue, "end")
    ends = pull.positions()
    for queue in ends:
        pull.seek(queue, "begin")
    for _ in attempts(pause=0.0):
        with contextlib.suppress(DamagedMessage):
            yield from pull.poll(max=1000, wait=0.2)
        if all(at >= ends[queue] for queue, at in pull.positions().items()):
            return
    raise AssertionError(f"the reader stands at {pull.positions()} of {ends}")


def _end_after_two_beats(broker: Broker) -> int:
    """Where the log ends once the keeper has had its time for what stops sends: an append may have been under way."""
    with looking(broker) as store:
        beats = {_keeper_beat_ns(broker)}
        eventually(lambda: beats.add(_keeper_beat_ns(broker)) or len(beats) > 2)
        return store.log_end


def _keeper_beat_ns(broker: Broker) -> int:
    """When the keeper's last round began, 0 where none lives. Each flush writes the beat that the segments have."""
    instance = broker._instance()
    assert instance is not None, "the broker does not run"
    with contextlib.closing(open_counters(instance)) as counters:
        return beats_of(counters.blocks()).get("keeper", 0)


def _kill(broker: Broker, role: str) -> None:
    if role in (processes := broker.processes):
        os.kill(processes[role].pid, signal.SIGKILL)


def _news(text: str) -> list[dict[str, Any]]:
    return [
        line for line in _events(text) if line["event"].startswith("file.") or line["event"] == "index.file_dropped"
    ]


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _lost(text: str) -> Iterator[tuple[int, int]]:
    """Ranges of the log that were said to be lost."""
    for event in _events(text):
        if event.get("event") in _LOST_EVENTS:
            yield event["log_position"], event["end"]
        elif event.get("event") == "record.damaged":  # a reader came before the scrub
            yield event["log_position"], event["log_position"] + event["record_bytes"]
        elif event.get("event") == "file.lost":
            yield from ((int(found[1]), int(found[2])) for found in _POSITIONS.finditer(event.get("what", "")))
