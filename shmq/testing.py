"""A real broker for tests: started as a subprocess in private directories, and removed without a trace.

`Broker` starts, stops, kills and slows such a broker. Loaded by pytest as a plugin (entry point `pytest11`), this
module offers three fixtures:

    shmq_broker           one broker for one test
    shmq_broker_factory   call it for brokers with settings of their own: shmq_broker_factory(flush="sync")
    shmq_shared_broker    one broker for the whole session; `named("orders")` gives each test names of its own

Rules: (1) the processes are those of production, with smaller files and tables; (2) everything lies below one
temporary directory, and nothing else on the host is touched; (3) processes are ended by pid and start time, never by
name; (4) modules are compiled once: where Python writes no byte code and finds none of ours, that of all brokers of
this process lies in one private directory until it ends, because compiling costs each broker half a second.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from shmq.client.client_id import pid_of as pid_of
from shmq.client.kinds import check_wait
from shmq.client.timetable import check_move
from shmq.errors import BrokerNotRunning, UsageError
from shmq.shm.descriptors import above_standard
from shmq.shm.pickling import stays_here
from shmq.waits import is_ready

if TYPE_CHECKING:
    from shmq.client.administration.admin import DeadLetter
    from shmq.client.connection import Connection
    from shmq.client.consumers.pull import PullConsumer
    from shmq.client.link import Link
    from shmq.shm.core import Message
    from shmq.shm.instance import Instance
    from shmq.shm.liveness import ProcessMark
    from shmq.shm.place import Place

START_TIMEOUT = STOP_TIMEOUT = 120.0  # what takes half a second takes a minute at a load of 40
LOOK_TIMEOUT = 2.0  # on a quiet machine, more on a busy one
SMALL: dict[str, Any] = {
    "file_bytes": 4 << 20,
    "topic_max": 2048,
    "queue_max": 16384,
    "frame_max": 4096,
    "unit_memory_bytes": 8 << 20,
    "client_max": 128,
    "group_max": 2048,
    "offset_max": 32768,
    "disk_warn_percent": 100,
    "disk_force_percent": 100,
    "disk_refuse_percent": 100,
}
"""Settings of a few dozen MiB that serve the tests of a whole session, however full the disk is."""

_serial = itertools.count(1)


class Broker:
    """A broker of its own: `with Broker() as broker, broker.connect() as mq:`.

    Args:
        name: of the broker; a slave has its master's. Else one that no other has.
        tcp: serve RocketMQ's clients too, on free ports of loopback; see `name_server` and `broker_address`.
        clock: "movable" runs, and `advance` moves it ahead; "frozen" stands until `advance` moves it, so that nothing
            is due because a machine was slow; "host" is the host's.
        settings: those of the daemon, as in its options: auto_create, default_queues, flush, segments, file_bytes, …
            They are added to `SMALL`, which keeps a test at a few dozen MiB; with small=False to those of `shmq serve`.
    """

    __reduce_ex__ = stays_here("hand over broker.url, or a connection")

    def __init__(
        self,
        *,
        timeout: float = START_TIMEOUT,
        tcp: bool = False,
        name: str = "",
        clock: Literal["movable", "frozen", "host"] = "movable",
        **settings: Any,
    ) -> None:
        self.name = name or f"test-{os.getpid()}-{next(_serial)}"
        with above_standard:
            self.directory = Path(tempfile.mkdtemp(prefix="shmq-test-"))
        self._timeout = check_wait(timeout, START_TIMEOUT)
        is_small = settings.pop("small", True)
        network = {"clock": clock, "tcp": tcp, "listen": "127.0.0.1:0", "nameserver_listen": "127.0.0.1:0"}
        if clock == "frozen":
            settings.setdefault("clock_ms", int(time.time() * 1000))
        self._settings = {**network, **(SMALL if is_small else {}), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._observer: Connection | None = None
        self._expecting: dict[str, PullConsumer] = {}

    # -- where it is
    @property
    def place(self) -> Place:
        """Its name and runtime directory."""
        from shmq.shm.place import Place

        return Place(self.name, self.directory / self.name)

    @property
    def url(self) -> str:
        """The URL for `shmq.connect()`, here or in another process."""
        return self.place.url

    @property
    def store(self) -> Path:
        """Its store directory."""
        return self.directory / "store"

    @property
    def name_server(self) -> str:
        """Host and port of its name server; RocketMQ's clients are given this. Needs tcp=True."""
        return self._address("nameserver")

    @property
    def broker_address(self) -> str:
        """Host and port of the broker itself. Needs tcp=True."""
        return self._address("broker")

    @property
    def log(self) -> str:
        """The stderr of its processes so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "broker.log").read_text(errors="replace")
        return ""

    @property
    def processes(self) -> dict[str, ProcessMark]:
        """Its living processes by role: supervisor, keeper, bridge."""
        from shmq.shm.liveness import is_alive

        instance = self._instance()
        marks = instance.processes if instance is not None else {}
        return {role: mark for role, mark in marks.items() if is_alive(mark)}

    # -- life
    def start(self) -> Self:
        """Start it and wait until clients can attach.

        Raises:
            BrokerNotRunning: it did not get ready; the message holds its reason and its log.
        """
        if self._process is not None:
            raise UsageError(f"broker {self.name} runs already", hint="restart() starts it again after kill_daemon()")
        settings = {
            **self._settings,
            "broker_name": self.name,
            "runtime_dir": str(self.place.runtime_dir),
            "store": str(self.store),
        }
        with above_standard:
            ready, child_end = os.pipe()
        command = [sys.executable, "-P", "-m", "shmq.daemon", "serve", "--options", json.dumps(settings)]
        try:
            with above_standard, open(self.directory / "broker.log", "ab") as log:
                self._process = subprocess.Popen(
                    [*command, "--ready-fd", str(child_end)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(child_end,),
                    env=_environment(),
                )
            os.close(child_end)
            child_end = -1
            self._wait_ready(ready)
        finally:
            os.close(ready)
            if child_end >= 0:
                os.close(child_end)
        return self

    def stop(self) -> None:
        """Stop it in order, or by force when it does not; remove its segments and directories. Twice is harmless."""
        self._close_observer()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process_ends()
        self.kill_daemon()
        from shmq.shm.segment import unlink_segments

        instance = self._instance()
        if instance is not None:
            unlink_segments(instance)
        with above_standard:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self if self._process is not None else self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def connect(self, **arguments: Any) -> Connection:
        """Return a new connection of this process; arguments as for `shmq.connect`."""
        from shmq.client.connection import connect

        return connect(self.url, **arguments)

    # -- looking
    def time(self) -> float:
        """Return the time on its clock, in seconds since the epoch."""
        return self._watch()._local().wire.now_ms() / 1000

    def expect(self, topic: str, n: int = 1, timeout: float | None = None) -> list[Message]:
        """Return the next `n` messages of a topic, from any sender; each message is returned once.

        Raises:
            AssertionError: fewer came within `timeout` seconds; by default 2, and more on a busy machine.
        """
        timeout = check_wait(timeout, _look_timeout())
        deadline = time.monotonic() + timeout
        found: list[Message] = []
        while len(found) < n:
            consumer = self._consumer_of(topic)
            left = max(0.0, deadline - time.monotonic())
            if consumer is None:
                time.sleep(min(left, 0.005))  # the topic is not there yet
            else:
                found += consumer.poll(n - len(found), left)
            if len(found) < n and time.monotonic() >= deadline:
                bodies = [message.body[:40] for message in found]
                raise AssertionError(
                    f'{n} messages expected on "{topic}" within {timeout:g} s, {len(found)} came: {bodies}'
                )
        return found

    def dlq(self, group: str, n: int = 0, timeout: float | None = None) -> list[DeadLetter]:
        """Return what a group gave up on, all of it, as soon as that is `n` messages or more.

        A member buries a message after its handler has ended, and other threads of a listener go on meanwhile: a test
        that looks for dead letters says how many there have to be.

        Raises:
            AssertionError: there were fewer after `timeout` seconds; by default 2, and more on a busy machine.
        """
        timeout = check_wait(timeout, _look_timeout())
        deadline = time.monotonic() + timeout
        while len(letters := self._watch().admin.dlq(group)) < n:
            if time.monotonic() >= deadline:
                reasons = [letter.reason for letter in letters]
                raise AssertionError(
                    f'{n} dead letters expected of "{group}" within {timeout:g} s, {len(letters)} came: {reasons}'
                )
            time.sleep(0.005)
        return letters

    # -- doing harm
    def advance(self, seconds: float) -> None:
        """Move the clocks ahead by which things come later: the broker's, and those of this process' connections.

        Delays of messages, of `nack` and `Retry`, invisible times, checks of transactions, the age at which files go
        and the client's own intervals pass at once, and what any process stores from then on says so. What has come due
        is in its topic when this returns, unless there is very much of it.

        With `clock="frozen"` nothing else makes these times pass; a restart goes on where the clock stood. Real time
        goes on for liveness, connections, waits inside a `receive`, flushes, and what a member keeps to itself:
        ordered messages and those that are given back for a second or less. Limits of TCP connections that are no
        member's, such as that of a silent one, pass with the frozen clock.
        """
        seconds = check_move(seconds)
        connections = self._connections()
        for connection in connections:
            connection._live().poppers.settle()  # what was acknowledged before counts
        wire = self._watch()._local().wire
        wire.control.advance_clock(wire.store, seconds)
        if self._settings["clock"] == "frozen":
            self._settings["clock_ms"] = wire.now_ms()
        for connection in connections:
            connection._clock.advance(seconds)
            connection._timetable.clock_moved()

    def kill_consumer(self, group: str) -> list[str]:
        """Kill every process that is a member of the group (SIGKILL), and return the client ids.

        Members inside this process vanish as if it had been killed: nothing is drained, given back or unregistered.
        """
        from shmq.shm.liveness import mark_of, signal_proven

        members = self._watch().admin.groups[group].members
        local = {connection.client_id: connection for connection in self._local()}
        for member in members:
            if member in local:
                local[member]._vanish()
            elif (mark := mark_of(pid_of(member))) is not None:
                signal_proven(mark, signal.SIGKILL)
        return members

    def kill_daemon(self) -> None:
        """Kill supervisor, keeper and bridge (SIGKILL). Segments and files stay, and clients go on."""
        from shmq.shm.liveness import is_alive, signal_proven

        # The supervisor last: alive it starts the others again, and its end makes the kernel continue what is stopped.
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
        marks = sorted(self.processes.items(), key=lambda process: process[0] == "supervisor")
        deadline = time.monotonic() + STOP_TIMEOUT
        for _, mark in marks:
            signal_proven(mark, signal.SIGKILL)
            while is_alive(mark) and time.monotonic() < deadline:
                time.sleep(0.001)  # the kernel reports no end of a process that is not our child
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def restart(self) -> Self:
        """Start it again on the same directories, after `kill_daemon()` or in place of the running one."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        return self.start()

    def __repr__(self) -> str:
        return f"<shmq.testing.Broker {self.url} {'running' if self._process is not None else 'stopped'}>"

    def _wait_ready(self, ready: int) -> None:
        text = b""
        deadline = time.monotonic() + self._timeout
        while not text.endswith(b"\n") and is_ready(ready, deadline - time.monotonic()):
            part = os.read(ready, 4096)
            if not part:
                self._process_ends()
                break
            text += part
        answer = json.loads(text) if text.endswith(b"\n") else {}
        if not answer.get("ready"):
            ended = None if self._process is None else self._process.poll()
            silent = f"no answer within {self._timeout:g} s" if ended is None else f"it ended with status {ended}"
            reason = answer.get("error") or silent
            log = self.log
            self.kill_daemon()
            raise BrokerNotRunning(f"the test broker did not start: {reason}\n{log}", hint=str(answer.get("hint", "")))

    def _process_ends(self) -> None:
        """Wait for the end of a process that is about to end."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)

    def _address(self, name: str) -> str:
        from shmq.shm.addresses import read_addresses

        address = read_addresses(self.place.addresses_path).get(name)
        if address is None:
            raise UsageError(f"{self!r} does not listen on TCP", hint="start it as Broker(tcp=True)")
        return address

    def _instance(self) -> Instance | None:
        from shmq.errors import ShmqError
        from shmq.shm.instance import read_instance

        with contextlib.suppress(ShmqError, OSError):
            return read_instance(self.place.instance_path)
        return None

    def _connections(self) -> list[Link]:
        """Those of this process, over shared memory and TCP."""
        from shmq.client.link import live_connections
        from shmq.shm.addresses import read_addresses

        here = {self.url, f"rocketmq://{read_addresses(self.place.addresses_path).get('nameserver')}"}
        return [link for link in live_connections() if not link.closed and link.place.url.partition("?")[0] in here]

    def _local(self) -> list[Link]:
        return [link for link in self._connections() if not link.is_remote]

    def _watch(self) -> Connection:
        if self._observer is None:
            self._observer = self.connect()
        return self._observer

    def _consumer_of(self, topic: str) -> PullConsumer | None:
        if topic not in self._expecting:
            if topic not in self._watch().admin.topics:
                return None
            self._expecting[topic] = self._watch().pull_consumer(topic)
        return self._expecting[topic]

    def _close_observer(self) -> None:
        self._expecting.clear()
        if self._observer is not None:
            self._observer.close(1.0)
            self._observer = None


def _look_timeout() -> float:
    """Return how many seconds `expect` and `dlq` wait unless told: as many times 2 as processes share a processor.

    What is there is returned at once, so a longer wait costs a test only when it fails.
    """
    with above_standard, open("/proc/loadavg") as file:
        words = file.read().split()
    runnable = int(words[3].partition("/")[0])  # now; the load is a mean over a minute, and lags behind
    return LOOK_TIMEOUT * max(1.0, max(float(words[0]), runnable) / len(os.sched_getaffinity(0)))


def _environment() -> dict[str, str]:
    """Return the variables of a broker's processes."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SHMQ_")}
    if (kept := _kept_bytecode()) is not None:
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        variables["PYTHONPYCACHEPREFIX"] = kept.name
    return variables


@functools.cache
def _kept_bytecode() -> tempfile.TemporaryDirectory[str] | None:
    """Return the directory of the byte code that brokers keep; it vanishes when this process ends."""
    if not sys.dont_write_bytecode or Path(importlib.util.cache_from_source(__file__)).exists():
        return None
    with above_standard:
        return tempfile.TemporaryDirectory(prefix="shmq-test-bytecode-", ignore_cleanup_errors=True)


class SharedBroker:
    """One test's view of a broker that all tests of a session share."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self.broker = broker
        self.namespace = namespace

    def named(self, name: str) -> str:
        """Return a topic or group name that no other test has."""
        return f"{name}-{self.namespace}"

    @property
    def url(self) -> str:
        """The URL for `shmq.connect()`."""
        return self.broker.url

    def connect(self, **arguments: Any) -> Connection:
        """Return a new connection of this process."""
        return self.broker.connect(**arguments)

    def expect(self, topic: str, n: int = 1, timeout: float | None = None) -> list[Message]:
        """Return the next `n` messages of a topic; see `Broker.expect`."""
        return self.broker.expect(topic, n, timeout)

    def dlq(self, group: str, n: int = 0, timeout: float | None = None) -> list[DeadLetter]:
        """Return what a group gave up on, as soon as that is `n` messages or more; see `Broker.dlq`."""
        return self.broker.dlq(group, n, timeout)


def pytest_configure(config: Any) -> None:
    """Offer the fixtures; called by pytest when it loads this module as a plugin."""
    config.pluginmanager.register(_fixtures(), "shmq-fixtures")


def _fixtures() -> object:
    import pytest

    class Fixtures:
        @pytest.fixture
        def shmq_broker(self) -> Iterator[Broker]:
            """A real broker for this test."""
            with Broker() as broker:
                yield broker

        @pytest.fixture
        def shmq_broker_factory(self) -> Iterator[Callable[..., Broker]]:
            """Start real brokers with settings of their own; all are stopped after the test."""
            with contextlib.ExitStack() as brokers:
                yield lambda **settings: brokers.enter_context(Broker(**settings))

        @pytest.fixture(scope="session")
        @classmethod
        def _shmq_session_broker(cls) -> Iterator[Broker]:
            with Broker() as broker:
                yield broker

        @pytest.fixture
        def shmq_shared_broker(self, _shmq_session_broker: Broker) -> SharedBroker:
            """The session's broker, with names of this test's own."""
            return SharedBroker(_shmq_session_broker, f"{os.getpid()}-{next(_serial)}")

    return Fixtures()
