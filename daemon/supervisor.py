"""The supervisor: starts keeper and bridge, starts them again when they die, stops them in order.

Log files and segments belong to the keeper; the supervisor only removes segments that the keeper has retired.

    start                  guard (locks) · rehearsal · keeper · instance.json · bridge · the other bridges ·
                           announcement
    a child ends in order  again at once: a switch; where the segments are given up, with the keeper's new ones
    a child dies           again at once, then after pauses (restarts.py)
    instance.json is gone  it is written again within a second
    keeper: new segments   instance.json, bridge started again: clients attach to the new ones
    SIGTERM, SIGINT,       an elected broker hands over · bridge · keeper (retires the segments, saves) · segments,
    SIGQUIT                socket, instance.json removed
    SIGHUP                 the same, once, as terminal and shell both send it; ignored where nohup said so
    SIGUSR1, SIGALRM …     ignored, here and in the children: they come by mistake
    a second signal        children are killed; the next start recovers
    SIGKILL of itself      children leave within a second; segments and clients stay; the next supervisor goes on

Rules: (1) a child that never served and says why ends the start with that reason; later it is only tried again;
(2) segments are removed after the keeper retired them, or, when it could not, after this process did.
"""

import contextlib
import functools
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from shmq.daemon.announcement import Announcer, tcp_facts
from shmq.daemon.child import Child
from shmq.daemon.descriptors import check_descriptor_limit
from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import exit_code_of
from shmq.daemon.feeder import Feeder
from shmq.daemon.guard import Guard
from shmq.daemon.rehearsal import rehearse
from shmq.daemon.restarts import IN_ORDER, Restarts
from shmq.daemon.runtime_files import LOOK_SECONDS, RuntimeFiles
from shmq.daemon.service_manager import ServiceManager
from shmq.daemon.spares import Spares
from shmq.daemon.switched import stand_back
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.shm.addresses import read_addresses
from shmq.shm.core import KeeperStore
from shmq.shm.instance import Instance
from shmq.shm.liveness import own_mark
from shmq.shm.presence import attach_presence
from shmq.shm.replacing import remove_file, remove_unfinished
from shmq.shm.segment import open_store, unlink_segments
from shmq.shm.signal_event import ending_signals

_STOP_SECONDS = {"bridge": 5.0, "keeper": 90.0}
_SUCCESSOR_SECONDS = 25.0  # after a keeper that hung: systemd and compose wait 120 s in all
_LOCK_SECONDS = 2.0


def _failure_of(error: ShmqError) -> dict[str, Any]:
    """Return why a start failed, as the announcer says it."""
    return {
        "message": str(error),
        "kind": type(error).__name__,
        "hint": error.hint,
        "exit_code": exit_code_of(error),
    }


class Supervisor:
    """One broker, from start to stop.

    Args:
        announcer: told once that the broker is ready, or why it is not.
    """

    def __init__(
        self, options: Options, announcer: Announcer, log: EventLog, manager: ServiceManager | None = None
    ) -> None:
        self._options = options
        self._place = options.place
        self._announcer = announcer
        self._log = log
        self._manager = manager or ServiceManager({})
        self._feeder = Feeder(self._manager, log)
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, Child] = {}
        self._workers = [f"bridge-{number}" for number in range(1, options.bridges)] if options.tcp else []
        self._servers = ("keeper", "bridge", *self._workers)  # whose work is looked at
        # Processes beside the broker: no send and no read waits for them.
        self._besides = ["exporter"] if options.metrics else []
        self._besides += ["replication"] if options.replicates else []
        self._spares = Spares(
            ("bridge", *self._workers, "replication") if options.etcd else (),
            functools.partial(self._start, waits=True),
        )
        self._restarts = Restarts((*self._servers, *self._besides))
        self._ready_roles: set[str] = set()
        self._due: dict[str, float] = {}  # role -> monotonic time of its next start
        self._instance: Instance | None = None
        self._runtime_files = RuntimeFiles(options.place, log)
        self._keeper_report: dict[str, Any] = {}
        self._began = time.monotonic()
        self._served = False
        self._metrics = ""
        self._signals = 0
        self._failure: dict[str, Any] | None = None
        self._guard: Guard | None = None
        self._alive = (-1, -1)

    def run(self) -> int:
        """Serve until told to stop; returns the exit status."""
        try:
            check_descriptor_limit()
            with self._catching_signals():
                self._guard = Guard.take(self._options, self._log)
                stand_back(self._options)
                self._failure = rehearse(self._options)
                # Whatever happens to us, the writing end closes with us, and the children leave.
                self._alive = os.pipe()
                self._due["keeper"] = 0.0
                while not self._signals and self._failure is None:
                    self._turn()
                saved = self._stop()
        except ShmqError as error:
            self._failure = _failure_of(error)
        finally:
            if self._guard is not None:
                self._guard.release()
        if self._failure is not None:
            self._announcer.failed(**self._failure)
            return int(self._failure["exit_code"])
        return ExitCode.DONE if saved else ExitCode.UNEXPECTED

    # -- the loop ----------------------------------------------------------------------------------------------------
    def _turn(self) -> None:
        now = time.monotonic()
        for role in [role for role, due in self._due.items() if due <= now]:
            del self._due[role]
            self._spawn(role)
        wake_ups = [*self._due.values(), *self._spares.turn(now)]
        if self._served and self._instance is not None:
            wake_ups.append(self._runtime_files.look(now, self._instance))
            if self._manager.feed_seconds:
                wake_ups.append(self._feeder.turn(now, self._instance, self._servers))
        pause = max(0.0, min(wake_ups) - now) if wake_ups else None
        self._log.tick()
        for key, _ in self._selector.select(pause):
            key.data()

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """Let what ends us end the selector's sleep."""
        inner, outer = socket.socketpair()
        inner.setblocking(False)
        outer.setblocking(False)
        self._selector.register(inner, selectors.EVENT_READ, lambda: inner.recv(64))
        before = [(number, signal.signal(number, self._on_signal)) for number in ending_signals()]
        wakeup = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before:
                signal.signal(number, handler)
            self._selector.close()
            inner.close()
            outer.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._signals:
            return
        self._signals += 1
        if self._signals > 1:
            for child in self._children.values():
                child.kill()

    def _start(self, role: str, *, waits: bool = False) -> Child:
        assert self._guard is not None
        locks = self._guard.descriptors
        return Child(role, self._options, alive_descriptor=self._alive[0], lock_descriptors=locks, waits=waits)

    # -- children ----------------------------------------------------------------------------------------------------
    def _spawn(self, role: str) -> None:
        if not self._write_instance():  # a keeper that does not find the segments makes others
            self._due[role] = time.monotonic() + LOOK_SECONDS
            return
        child = self._spares.take(role) or self._start(role)
        child.generation = self._instance.generation if self._instance is not None else 0
        self._children[role] = child
        self._selector.register(child.ready_descriptor, selectors.EVENT_READ, lambda: self._on_message(child))
        self._selector.register(child.exit_descriptor, selectors.EVENT_READ, lambda: self._on_exit(child))
        self._log("child.started", role=role, pid=child.pid)
        self._record()

    def _on_message(self, child: Child) -> None:
        if child.is_heard or not child.hear():
            return
        self._selector.unregister(child.ready_descriptor)
        message = child.message
        if "ready" in message:
            self._on_ready(child, message["ready"])
        elif "error" in message and self._ends_the_start(child):
            self._failure = {
                "message": str(message["error"]),
                "kind": str(message.get("kind", "")),
                "hint": str(message.get("hint", "")),
                "exit_code": int(message.get("exit", ExitCode.UNEXPECTED)),
            }

    def _on_ready(self, child: Child, report: dict[str, Any]) -> None:
        if child.role != "keeper":
            self._metrics = report.get("metrics", self._metrics)
            self._on_server_ready(child.role)
            return
        before, self._instance = self._instance, Instance.from_object(report["instance"])
        self._keeper_report = report
        attach_presence(self._instance)
        self._record()
        is_new = before is None or before.generation != self._instance.generation
        for role in (*self._besides, "bridge"):
            if role not in self._children and (is_new or role not in self._due):
                self._due[role] = 0.0
        if is_new and "bridge" in self._children:
            self._log("bridge.restarted", reason="the keeper made new segments")
        for role in ("bridge", *self._workers, *set(self._besides) - {"exporter"}):
            if is_new and role in self._children:
                self._children[role].ask_to_stop()

    def _on_server_ready(self, role: str) -> None:
        assert self._instance is not None
        self._runtime_files.learn(role)
        self._ready_roles.add(role)
        self._spares.want(role, time.monotonic())
        if role == "bridge":  # the others follow it, because it knows the ports
            for worker in self._workers:
                if worker not in self._children:
                    self._due.setdefault(worker, 0.0)
        if self._ready_roles >= {"bridge", *self._workers, *self._besides}:
            self._served = True
            self._manager.ready(f"serving as {self._place.broker_name}")
            tcp = tcp_facts(
                read_addresses(self._place.addresses_path),
                nameservers=self._options.nameserver_addresses,
                advertise=self._options.advertise,
            )
            seconds = time.monotonic() - self._began
            self._announcer.ready(
                self._place, self._instance, self._keeper_report, seconds, tcp=tcp, metrics=self._metrics
            )

    def _on_exit(self, child: Child) -> None:
        status = child.wait(0.0)
        if status is None:
            return
        self._on_message(child)  # its last words may have come in the same turn
        self._forget(child)
        if self._failure is not None or self._signals:
            return
        if self._ends_the_start(child) and status > 0:
            self._failure = {
                "message": f"the {child.role} ended with status {status}; its log lines say why",
                "kind": "",
                "hint": "",
                "exit_code": status,
            }
            return
        age = child.age_seconds
        pause = self._restarts.pause(child.role, status, has_served="ready" in child.message, age_seconds=age)
        if status in IN_ORDER and child.role != "keeper" and self._is_given_up():
            self._log("child.ended", role=child.role, pid=child.pid, status=status, reason="the segments are given up")
            return  # what is new begins with it
        self._log("child.ended", role=child.role, pid=child.pid, status=status, restart_seconds=pause)
        self._due[child.role] = time.monotonic() + pause

    def _ends_the_start(self, child: Child) -> bool:
        """Whether a failure of this child ends the start; not when its segments were given up meanwhile."""
        if self._served or child.role == "keeper":
            return not self._served
        return self._instance is not None and child.generation == self._instance.generation and not self._is_given_up()

    def _is_given_up(self) -> bool:
        """Whether the keeper makes new segments, because the log of a slave has to begin elsewhere."""
        keeper = self._children.get("keeper")
        return keeper is None or not keeper.is_heard or self._is_retired()

    def _is_retired(self) -> bool:
        if self._instance is None:
            return True
        with contextlib.suppress(ShmqError):
            store = open_store(self._instance, writable=False, observing=True)
            try:
                return store.retired
            finally:
                store.close()
        return False

    def _forget(self, child: Child) -> None:
        for descriptor in (child.ready_descriptor, child.exit_descriptor):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        child.close()
        self._children.pop(child.role, None)
        self._runtime_files.forget(child.role)

    def _record(self) -> None:
        """Note which processes there are."""
        if self._instance is None:
            return
        marks = {role: self._children[role].mark if role in self._children else None for role in self._restarts.roles}
        self._instance = self._instance.with_processes(supervisor=own_mark(), **marks)
        self._write_instance()

    def _write_instance(self) -> bool:
        """Write instance.json; False where that cannot be, which ends a start."""
        error = self._runtime_files.write(self._instance) if self._instance is not None else None
        if error is not None and not self._served:
            self._failure = _failure_of(error)
        return error is None

    # -- the end -------------------------------------------------------------------------------------------------------
    def _stop(self) -> bool:
        """Stop the children in order and remove what they leave; False when something was not saved."""
        self._log("broker.stopping")
        self._manager.stopping()
        self._spares.close()
        servers = (*self._besides, *self._workers, "bridge")
        # An elected leader hands over first: its successor asks the bridge for what it lacks.
        first = ("replication",) if self._options.etcd else ()
        self._end_all(first)
        self._end_all(role for role in servers if role not in first)
        self._see_to_a_keeper()
        keeper = self._end("keeper") if "keeper" in self._children else None
        if keeper == -signal.SIGKILL and not self._is_retired():  # it hung: what it had not saved is in memory alone
            self._see_to_a_keeper()
            keeper = self._end("keeper", _SUCCESSOR_SECONDS) if "keeper" in self._children else keeper
        if keeper is None:
            saved = retired = self._instance is None
        else:
            saved, retired = keeper == ExitCode.DONE, keeper in (ExitCode.DONE, ExitCode.UNEXPECTED)
        self._remove(retired=retired)
        self._log("broker.stopped", saved=saved)
        return saved

    def _see_to_a_keeper(self) -> None:
        """Start one where the last has died: what members have committed since it saved is in memory alone."""
        keeper = self._children.get("keeper")
        if keeper is not None and keeper.wait(0.0) is not None:
            self._forget(keeper)
        # A second signal is not to wait for another one.
        if self._instance is not None and "keeper" not in self._children and self._signals < 2:
            self._spawn("keeper")

    def _end_all(self, roles: Iterable[str]) -> None:
        living = [role for role in roles if role in self._children]
        for role in living:
            self._children[role].ask_to_stop()
        for role in living:
            self._end(role)

    def _end(self, role: str, seconds: float = 0.0) -> int:
        """Have a child end, by force when it does not in so many seconds, 0: the usual ones; return its status."""
        child = self._children[role]
        child.ask_to_stop()
        seconds = seconds or _STOP_SECONDS["keeper" if role == "keeper" else "bridge"]
        status = child.wait(seconds)
        if status is None:
            self._log("child.killed", role=role, pid=child.pid, reason=f"did not stop in {seconds} s")
            child.kill()
            status = -signal.SIGKILL
        self._on_message(child)  # a keeper that had just begun may have made segments
        self._forget(child)
        return status

    def _remove(self, *, retired: bool) -> None:
        instance = self._instance
        if instance is None:
            return
        if not retired:
            with contextlib.suppress(ShmqError):
                store = open_store(instance, writable=True)
                keeper_store = KeeperStore(store)
                keeper_store.set_retired()
                keeper_store.repair(_LOCK_SECONDS)
                store.close()
        unlink_segments(instance)
        place = self._place
        told = (place.addresses_path, place.metrics_path, place.ha_path, place.links_path)
        files = (place.instance_path, place.socket_path, place.switch_path, place.roster_path, *told)
        for path in files:
            remove_file(path)
        remove_unfinished(self._place.runtime_dir)
