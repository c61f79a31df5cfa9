"""The control client over a real socket, against a real bridge over real segments."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from shmq.client.wire import UNWATCHED, Watcher
from shmq.client.wire_shm import control_channel
from shmq.client.wire_shm.control import ControlClient
from shmq.client.wire_shm.control_link import ControlLink
from shmq.errors import (
    BrokerNotRunning,
    ConnectError,
    InvalidName,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    SegmentError,
    SubscriptionConflict,
    TopicNotFound,
    UsageError,
    VersionMismatch,
)
from shmq.protocol.body import ConsumerData, SubscriptionData
from shmq.protocol.codes import Request, Role
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.liveness import pid_namespace
from shmq.shm.place import Place
from shmq.shm.segment import open_store
from tests.bridge.live_bridge import LiveBridge, running, wait_until
from tests.tables.rows import every_row

DEADLINE = 60.0  # ends a test that hangs
WAITED = 0.2  # for what never comes


@pytest.fixture
def bridge() -> Iterator[LiveBridge]:
    with running() as live:
        yield live


def consume(group: str, topic: str = "orders", tags: str = "*") -> list[ConsumerData]:
    return [ConsumerData(group, [SubscriptionData(topic, tags)])]


class Heard:
    """Records the calls of a client's callbacks."""

    def __init__(self, client: ControlClient) -> None:
        self.groups: list[str] = []
        self.reconnects = 0
        self.errors: list[Exception] = []
        client.watcher = Watcher(self.groups.append, self._reconnected, self.errors.append)

    def _reconnected(self) -> None:
        self.reconnects += 1


def test_attaching_gives_everything_needed_to_map_the_segments(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    attachment = client.attachment
    assert attachment.instance == bridge.instance
    assert (attachment.auto_create, attachment.default_queues, attachment.wait_durable) == (True, 8, False)
    assert attachment.broker_uid == os.geteuid()
    assert bridge.slots() == {attachment.client_slot: os.getpid()}
    store = open_store(attachment.instance, writable=True, uid=attachment.broker_uid)
    store.use_client(attachment.client_slot, attachment.slot_generation)
    assert store.client_slot == attachment.client_slot
    store.close()
    assert client.alive


def test_a_client_without_a_role_takes_no_slot(bridge: LiveBridge) -> None:
    client = bridge.connect("cli", role=Role.NONE)
    assert client.attachment.client_slot == -1 and bridge.slots() == {}
    assert client.status()["broker"]["name"] == "test"


def test_options_of_the_broker_arrive() -> None:
    with running(auto_create=False, default_queues=3) as live:
        attachment = live.connect("c1").attachment
        assert (attachment.auto_create, attachment.default_queues) == (False, 3)


def test_members_find_each_other(bridge: LiveBridge) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    heard = Heard(first)
    assert first.members("billing") == []
    first.heartbeat(["shop"], consume("billing"))
    second.heartbeat([], consume("billing"))
    wait_until(lambda: heard.groups == ["billing"], "the first member hears of the second")
    assert first.members("billing") == second.members("billing") == ["c1", "c2"]
    assert first.status()["producerGroups"] == {"shop": ["c1"]}
    second.unregister("billing")
    wait_until(lambda: heard.groups == ["billing", "billing"], "the first member hears that the second has left")
    assert first.members("billing") == ["c1"]


def test_a_killed_client_is_gone_at_once_and_the_others_are_notified(bridge: LiveBridge) -> None:
    survivor = bridge.connect("survivor")
    survivor.heartbeat([], consume("billing"))
    heard = Heard(survivor)
    child, slot = bridge.spawn("victim", "billing")
    wait_until(lambda: len(heard.groups) == 1)
    assert survivor.members("billing") == ["survivor", "victim"] and slot in bridge.slots()
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: len(heard.groups) == 2, "the survivor is notified")
    assert survivor.members("billing") == ["survivor"]
    assert slot not in bridge.slots()


def test_closing_leaves_at_once(bridge: LiveBridge) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    heard = Heard(first)
    for client in (first, second):
        client.heartbeat([], consume("billing"))
    wait_until(lambda: len(heard.groups) == 1)
    second.close()
    second.close()
    assert not second.alive
    wait_until(lambda: len(heard.groups) == 2)
    assert first.members("billing") == ["c1"]
    with pytest.raises(UsageError, match="closed"):
        second.members("billing")


def test_a_conflicting_subscription_is_refused_with_its_reason(bridge: LiveBridge) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    first.heartbeat([], consume("billing", "orders", "fruit"))
    with pytest.raises(SubscriptionConflict) as caught:
        second.heartbeat([], consume("billing", "orders", "veg"))
    assert 'orders: "fruit" / "veg"' in str(caught.value) and "another group name" in caught.value.hint
    assert first.members("billing") == ["c1"]


def test_members_that_read_different_topics_do_not_conflict(bridge: LiveBridge) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    first.heartbeat([], consume("billing", "orders"))
    second.heartbeat([], consume("billing", "invoices"))
    assert first.members("billing") == ["c1", "c2"]
    assert first.members("billing", "orders") == ["c1"] and first.members("billing", "invoices") == ["c2"]
    assert first.members("billing", "refunds") == []


def test_topics_are_administered(bridge: LiveBridge) -> None:
    client = bridge.connect("c1", role=Role.NONE)
    assert client.create_topic("orders", queues=4, kind="fifo")
    index = bridge.store.topic_find("orders")
    assert bridge.store.topic(index)["write_queues"] == 4 and bridge.store.topic(index)["kind"] == 1
    assert not client.create_topic("orders", queues=8, only_if_missing=True)
    assert bridge.store.topic(index)["write_queues"] == 4
    assert not client.create_topic("orders", queues=8)
    assert bridge.store.topic(index)["write_queues"] == 8
    with pytest.raises(TopicNotFound) as caught:
        client.delete_topic("ordres")
    assert caught.value.hint.startswith('did you mean "orders"?')
    client.delete_topic("orders")
    assert bridge.store.topic_find("orders") == -1
    with pytest.raises(InvalidName):
        client.create_topic("a b", queues=1)
    with pytest.raises(UsageError, match="1025 queues"):
        client.create_topic("t", queues=1025)
    with pytest.raises(UsageError, match="lifo"):
        client.create_topic("t", queues=1, kind="lifo")


def test_groups_and_offset_slots_are_administered(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    client.create_topic("orders", queues=3)
    slots = client.offset_slots("billing", "orders")
    queues = bridge.store.topic(bridge.store.topic_find("orders"))["queues"]
    assert [(queue_id, queue) for queue_id, queue, _ in slots] == list(enumerate(queues))
    assert client.offset_slots("billing", "orders") == slots
    bridge.store.offset_set(slots[1][2], 7)
    ext = {"consumerGroup": "billing", "topic": "orders", "queueId": "1"}
    assert client.request(Request.QUERY_CONSUMER_OFFSET, ext).ext == {"offset": "7"}
    with pytest.raises(TopicNotFound):
        client.offset_slots("billing", "nowhere")
    client.heartbeat([], consume("billing"))
    with pytest.raises(UsageError, match="1 members online"):
        client.delete_group("billing")
    client.unregister("billing")
    client.delete_group("billing")
    assert bridge.store.groups() == []
    with pytest.raises(RemoteError, match="does not exist"):
        client.delete_group("billing")
    client.create_group("audit")
    assert [name for _, name in bridge.store.groups()] == ["audit"]


def test_many_threads_share_one_client(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    wrong: list[object] = []

    def work(number: int) -> None:
        for round_number in range(30):
            name = f"topic-{number}-{round_number % 3}"
            client.create_topic(name, queues=number + 1)
            slots = client.offset_slots(f"group-{number}", name)
            if len(slots) != number + 1:
                wrong.append((name, slots))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {f"topic-{number}-{turn}" for number in range(6) for turn in range(3)}
    assert not wrong and names <= {entry["name"] for entry in bridge.store.topics()}


def test_callbacks_may_ask_the_broker(bridge: LiveBridge) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    seen: list[list[str]] = []
    first.watcher = UNWATCHED._replace(members_changed=lambda group: seen.append(first.members(group)))
    first.heartbeat([], consume("billing"))
    second.heartbeat([], consume("billing"))
    wait_until(lambda: seen == [["c1", "c2"]])


def test_a_callback_that_fails_does_not_stop_the_others(bridge: LiveBridge, caplog: pytest.LogCaptureFixture) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    calls: list[str] = []

    def fail(group: str) -> None:
        calls.append(group)
        raise RuntimeError("broken on purpose")

    first.watcher = UNWATCHED._replace(members_changed=fail)
    first.heartbeat([], consume("billing"))
    second.heartbeat([], consume("billing"))
    wait_until(lambda: len(calls) == 1)
    second.unregister("billing")
    wait_until(lambda: len(calls) == 2)
    assert first.members("billing") == ["c1"]
    assert "broken on purpose" in caplog.text


# -- the broker goes away and comes back


def test_after_a_killed_bridge_clients_are_back_with_slot_and_registration(bridge: LiveBridge) -> None:
    first, second = bridge.connect("c1"), bridge.connect("c2")
    heard = Heard(first)
    for client in (first, second):
        client.heartbeat([], consume("billing"))
    slots = [client.attachment.client_slot for client in (first, second)]
    bridge.end(signal.SIGKILL)
    wait_until(lambda: not first.alive and not second.alive)
    bridge.start()
    wait_until(lambda: first.alive and second.alive and heard.reconnects == 1)
    assert [client.attachment.client_slot for client in (first, second)] == slots
    wait_until(lambda: first.members("billing") == ["c1", "c2"], "both are registered again")
    assert heard.errors == [] and first.last_error is None


def test_a_request_waits_for_the_broker_to_come_back(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    client.create_topic("orders", queues=2)
    bridge.end()
    wait_until(lambda: not client.alive)
    answers: list[int] = []

    def ask() -> None:
        answers.append(len(client.request(Request.GET_ALL_TOPIC_CONFIG, timeout=60).body))

    asking = threading.Thread(target=ask)
    asking.start()
    assert answers == []
    bridge.start()
    asking.join(60)
    assert len(answers) == 1


def test_a_request_without_a_broker_ends_at_its_deadline(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    bridge.end()
    wait_until(lambda: not client.alive)
    with pytest.raises(BrokerNotRunning, match="is away") as caught:
        client.request(Request.STATUS, timeout=WAITED)
    assert caught.value.hint
    wait_until(lambda: isinstance(client.last_error, BrokerNotRunning))
    client.close()


def test_a_request_to_a_stopped_broker_ends_at_its_deadline_and_the_next_one_works(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    bridge.send_signal(signal.SIGSTOP)
    with pytest.raises(RequestTimeout, match="did not answer"):
        client.request(Request.STATUS, timeout=WAITED)
    bridge.send_signal(signal.SIGCONT)
    assert client.status()["broker"]["name"] == "test"


@pytest.mark.parametrize("is_killed", [False, True])
def test_leaving_a_group_does_not_wait_for_a_broker_that_does_not_answer(bridge: LiveBridge, is_killed: bool) -> None:
    client, other = bridge.connect("c1", timeout=60 * DEADLINE), bridge.connect("c2")
    for member in (client, other):
        member.heartbeat([], consume("billing"))

    def leave() -> None:
        with pytest.raises((BrokerNotRunning, RequestTimeout)):
            client.unregister("billing")

    if is_killed:
        bridge.end(signal.SIGKILL)
        wait_until(lambda: not client.alive and not other.alive)
    else:
        bridge.send_signal(signal.SIGSTOP)
    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(DEADLINE)
    assert not leaving.is_alive()
    if is_killed:
        bridge.start()
        wait_until(lambda: client.alive and other.alive)
    else:
        bridge.send_signal(signal.SIGCONT)
    wait_until(lambda: other.members("billing") == ["c2"], "it has heard of it all the same")


class LeapingClock:
    """The control channel's clock: `leaps` says how far it is ahead of ours, which a pause of the channel moves."""

    def __init__(self, leaps: Iterable[float]) -> None:
        self._leaps = iter(leaps)
        self._ahead = 0.0
        self.pauses = 0

    def monotonic(self) -> float:
        self._ahead += next(self._leaps, 0.0)
        return time.monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self._ahead += DEADLINE


def test_a_request_waits_for_the_timeout_of_connect(bridge: LiveBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bridge.connect("c1", timeout=DEADLINE)

    def leaps() -> Iterator[float]:
        yield 0.0  # when it was asked
        bridge.send_signal(signal.SIGCONT)
        yield DEADLINE / 2  # when it begins to wait for the answer

    bridge.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(control_channel, "time", LeapingClock(leaps()))
    assert client.status()["broker"]["name"] == "test"


def test_a_request_that_cannot_even_be_written_ends_at_its_deadline(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    bridge.send_signal(signal.SIGSTOP)
    with pytest.raises(RequestTimeout, match="does not read"):
        client.request(9999, body=bytes(4 << 20), timeout=WAITED)
    bridge.send_signal(signal.SIGCONT)
    assert client.status()["broker"]["name"] == "test", "the half-written frame must not poison the next request"


def test_a_registration_refused_after_a_reconnection_is_reported(bridge: LiveBridge) -> None:
    attach = {"instance": bridge.instance.to_object(), "clientSlot": 0, "autoCreate": True, "defaultQueues": 8}
    attached = json.dumps({**attach, "slotGeneration": 1, "waitDurable": False}).encode()
    conflict = SubscriptionConflict("it differs now", hint="look")
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        broker = ScriptedBroker(
            directory,
            [
                [lambda request: request.reply(body=attached), lambda request: request.reply()],
                [lambda request: request.reply(body=attached), lambda request: failure_reply(request, conflict)],
            ],
        )
        client = connect(place_in(directory))
        heard = Heard(client)
        client.heartbeat([], consume("billing"))
        broker.hang_up.set()
        wait_until(lambda: heard.reconnects == 1)
        assert [(type(error), str(error)) for error in heard.errors] == [(SubscriptionConflict, "it differs now")]
        assert client.alive, "the connection itself is good"
        client.close()
        broker.join(60)
    sent = [(command.code, command.ext.get("clientSlot")) for command in broker.received]
    beat = (Request.HEART_BEAT, None)
    assert sent == [(Request.ATTACH, None), beat, (Request.ATTACH, "0"), beat]
    assert broker.received[1].body == broker.received[3].body


def test_a_move_of_the_clock_whose_answer_is_lost_is_sent_again_from_where_it_was(bridge: LiveBridge) -> None:
    attach = {"instance": bridge.instance.to_object(), "clientSlot": 0, "autoCreate": True, "defaultQueues": 8}
    attached = json.dumps({**attach, "slotGeneration": 1, "waitDurable": False}).encode()
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        broker = ScriptedBroker(
            directory,
            [
                [lambda request: request.reply(body=attached), lambda request: broker.hang_up.set()],
                [lambda request: request.reply(body=attached), lambda request: request.reply()],
            ],
        )
        client = connect(place_in(directory))
        client.advance_clock(bridge.store, 1.0)
        client.close()
        broker.join(60)
    first, second = [command.ext for command in broker.received if command.code == Request.ADVANCE_CLOCK]
    assert first == second == {"from": "0", "milliseconds": "1000"}


def test_new_segments_come_with_a_new_slot(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    other = LiveBridge()
    try:
        bridge.connect("filler")
        slot_before = client.attachment
        bridge.end()
        # The broker has given its segments up: another generation is served at the same place.
        shutil.copy(other.place.instance_path, bridge.place.instance_path)
        bridge.start()
        wait_until(lambda: client.alive and client.attachment is not slot_before)
        assert client.attachment.instance.generation == other.instance.generation
        assert other.slots()[client.attachment.client_slot] == os.getpid()
        client.close()
        bridge.end()
    finally:
        other.close()


# -- refusals


def place_in(directory: str) -> Place:
    return Place("test", Path(directory))


def connect(place: Place, timeout: float = DEADLINE) -> ControlClient:
    return ControlClient.connect(place, client_id="c", role=Role.BOTH, timeout=timeout)


def test_without_a_broker_the_error_says_where_and_what_to_type() -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        with pytest.raises(BrokerNotRunning, match=r"control\.sock does not exist") as caught:
            connect(place_in(directory))
        assert caught.value.hint == "start it: shmq serve --name test"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{directory}/control.sock")
        with pytest.raises(BrokerNotRunning, match="no process listens"):
            connect(place_in(directory))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_socket_for_others_is_a_permission_error_with_its_numbers(bridge: LiveBridge) -> None:
    bridge.directory.chmod(0o755)
    code = (
        "import os, sys; sys.path[:0] = os.environ['SHMQ_TEST_PATH'].split(':')\n"
        "from pathlib import Path\n"
        "from shmq.client.wire_shm.control import ControlClient\n"
        "from shmq.errors import PermissionDenied\n"
        "from shmq.shm.place import Place\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: ControlClient.connect(Place('test', Path(sys.argv[1])), client_id='c', role=3, timeout=60)\n"
        "except PermissionDenied as error: print(error, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(bridge.directory)],
        env={**os.environ, "SHMQ_TEST_PATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "excludes uid 65534: it belongs to uid 0" in done.stdout and "usermod -aG shmq" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs to make a PID namespace")
def test_a_client_in_another_pid_namespace_is_refused_with_both_numbers(bridge: LiveBridge) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from shmq.client.wire_shm.control import ControlClient\n"
        "from shmq.errors import ForeignNamespace\n"
        "from shmq.shm.liveness import pid_namespace\n"
        "from shmq.shm.place import Place\n"
        "place = Place('test', Path(sys.argv[1]))\n"
        "print(pid_namespace())\n"
        "try: ControlClient.connect(place, client_id='c', role=3, timeout=60)\n"
        "except ForeignNamespace as error: print(error, error.hint)\n"
        "client = ControlClient.connect(place, client_id='c', role=0, timeout=60)\n"
        "print(client.attachment.client_slot)\n"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-P", "-c", code, str(bridge.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr)
    theirs, refusal, slot = done.stdout.splitlines()
    assert theirs != str(pid_namespace())
    assert f"PID namespace {pid_namespace()}, this client in {theirs}" in refusal and "--pid=container" in refusal
    assert slot == "-1", "it may still ask and administer"
    assert bridge.slots() == {}


def test_a_client_id_in_use_is_refused_after_the_holder_had_time_to_go(
    bridge: LiveBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, _ = bridge.spawn("same")
    clock = LeapingClock(())
    with monkeypatch.context() as patched, pytest.raises(ConnectError, match=f"in use by process {child.pid}"):
        patched.setattr(control_channel, "time", clock)
        ControlClient.connect(bridge.place, client_id="same", role=Role.BOTH, timeout=DEADLINE)
    assert clock.pauses == 1, "it is tried until the time is over"
    child.send_signal(signal.SIGKILL)
    bridge.connect("same")


Answer = Callable[[Command], Command | bytes | None]


class ScriptedBroker(threading.Thread):
    """Answers the requests of each connection by a script; hangs up the first one when told to."""

    def __init__(self, directory: str, scripts: list[list[Answer]]) -> None:
        super().__init__(daemon=True)
        self.received: list[Command] = []
        self.hang_up = threading.Event()
        self._scripts = scripts
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{directory}/control.sock")
        self._listener.listen()
        self.start()

    def run(self) -> None:
        with self._listener:
            for number, script in enumerate(self._scripts):
                connection, _ = self._listener.accept()
                with connection:
                    self._play(connection, script)
                    if number + 1 < len(self._scripts):
                        self.hang_up.wait(60)
                    else:
                        while connection.recv(65536):
                            pass

    def _play(self, connection: socket.socket, script: list[Answer]) -> None:
        decoder = CommandDecoder()
        for answer in script:
            while (request := decoder.take()) is None:
                decoder.feed(connection.recv(65536))
            self.received.append(request)
            reply = answer(request)
            if reply is not None:
                connection.sendall(reply if isinstance(reply, bytes) else encode_command(reply))


USELESS_INSTANCE = (
    b'{"instance":{},"clientSlot":0,"slotGeneration":1,"autoCreate":true,"defaultQueues":1,"waitDurable":true}'
)


@every_row(
    ("answer", "error"),
    [
        (lambda request: None, RequestTimeout),
        (lambda request: bytes(8), ProtocolError),
        (lambda request: Command(code=1, opaque=9), RequestTimeout),  # a request is no answer
        (lambda request: request.reply(), ProtocolError),
        (lambda request: request.reply(body=b'{"instance":{}}'), ProtocolError),
        (lambda request: request.reply(body=USELESS_INSTANCE), SegmentError),
        (lambda request: failure_reply(request, VersionMismatch("layout 2 and 1")), VersionMismatch),
    ],
)
def test_whatever_the_other_side_answers_the_error_has_a_type(answer: Answer, error: type[Exception]) -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        broker = ScriptedBroker(directory, [[answer]])
        with pytest.raises(error):
            connect(place_in(directory), timeout=WAITED if error is RequestTimeout else DEADLINE)
        broker.join(60)
        assert broker.received[0].ext["clientId"] == "c"


def test_a_socket_that_closes_at_once_is_a_broker_that_is_not_there() -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/control.sock")
        listener.listen()

        def hang_up() -> None:
            listener.accept()[0].close()

        closing = threading.Thread(target=hang_up)
        closing.start()
        with pytest.raises(BrokerNotRunning, match="is gone"):
            connect(place_in(directory))
        closing.join()


# -- fork


def test_a_forked_child_is_refused_and_its_end_does_not_disturb_the_parent(bridge: LiveBridge) -> None:
    client = bridge.connect("c1")
    client.heartbeat([], consume("billing"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert not client.alive
            client.members("billing")
        except UsageError as error:
            os.write(writing, str(error).encode())
            status = 0
        finally:
            client.close()
            os._exit(status)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        assert f"belongs to process {os.getpid()}" in pipe.read()
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.alive and client.members("billing") == ["c1"]


def test_a_child_that_outlives_its_parent_does_not_keep_the_membership_alive(bridge: LiveBridge) -> None:
    survivor = bridge.connect("survivor")
    survivor.heartbeat([], consume("billing"))
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from shmq.client.wire_shm.control import ControlClient\n"
        "from shmq.protocol.body import ConsumerData, SubscriptionData\n"
        "from shmq.shm.place import Place\n"
        "c = ControlClient.connect(Place('test', Path(sys.argv[1])), client_id='parent', role=3, timeout=60)\n"
        "c.heartbeat([], [ConsumerData('billing', [SubscriptionData('orders')])])\n"
        "child = os.fork()\n"
        "if child == 0: sys.stdin.read(); os._exit(0)\n"
        "print('forked', flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(bridge.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None and parent.stdout.readline() == "forked\n"
    parent.wait()
    wait_until(lambda: survivor.members("billing") == ["survivor"], "the parent has left, although its child lives")
    assert parent.stdin is not None
    parent.stdin.close()
    parent.stdout.close()


# -- the link


def test_a_link_that_is_closed_wakes_its_reader(bridge: LiveBridge) -> None:
    link = ControlLink.dial(bridge.place, time.monotonic() + DEADLINE)
    woken: list[Exception] = []

    def read() -> None:
        try:
            link.receive(None)
        except ConnectError as error:
            woken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    link.close()
    reader.join(60)
    assert len(woken) == 1
    link.finish()
    with pytest.raises(ConnectError):
        link.receive(None)
    with pytest.raises(ConnectError):
        link.send(Command(code=1), time.monotonic() + 1)


@pytest.mark.slow
def test_no_descriptor_is_left_behind(bridge: LiveBridge) -> None:
    def descriptors() -> Counter[str]:
        """How many of each kind; what other threads open meanwhile they close as well."""
        found: Counter[str] = Counter()
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[os.readlink(each).partition(":[")[0]] += 1
        return found

    bridge.connect("warm-up").close()
    before = descriptors()
    client = bridge.connect("c1")
    for _ in range(3):
        bridge.end(signal.SIGKILL)
        wait_until(lambda: not client.alive)
        bridge.start()
        wait_until(lambda: client.alive)
    client.close()
    wait_until(lambda: descriptors() <= before, "every socket is closed")
