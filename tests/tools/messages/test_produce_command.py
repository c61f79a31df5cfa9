"""What goes in by `shmq produce` is in the log: every line, once, in order."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shmq
from shmq.testing import Broker, SharedBroker
from shmq.tools.command import Call
from shmq.tools.messages import sender as message_sender
from shmq.tools.messages.sender import Attributes, Sender
from tests.tools.shell import TIMEOUT, Shell, joined, until

ACCOUNTS = """
accounts:
- accessKey: order-service
  secretKey: secret-of-orders
  topicPerms: [orders=PUB, ordres=PUB]
- accessKey: operations
  secretKey: secret-of-operations
  admin: true
"""


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("hello")


def test_an_argument_is_one_message(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    result = shell.run("produce", topic, "first message")
    assert (result.status, result.out) == (0, b"")
    [message] = shmq_shared_broker.expect(topic)
    assert message.body == b"first message"
    assert result.err == f"stored 1 message (13 B) in queue {message.queue_id} at offset 0\n"


def test_bytes_of_an_argument_that_are_no_text_arrive_as_they_are(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, b"\xff\xfe".decode("utf-8", "surrogateescape"))
    assert shell.ok("consume", topic, "-e") == b"\xff\xfe\n"


@pytest.mark.parametrize("words", [("-",), ()], ids=["dash", "nothing"])
def test_every_line_of_a_stream_comes_back_in_order(shell: Shell, topic: str, words: tuple[str, ...]) -> None:
    lines = [b"", b"a", b"", b"", b"with\rreturn", b"\x00binary\xff", b" spaces ", b"last"]
    result = shell.run("produce", topic, *words, stdin=joined(lines))
    assert (result.status, result.out) == (0, b"")
    assert result.err.startswith("stored 8 messages (")
    assert shell.ok("consume", topic, "-e") == joined(lines)


def test_a_line_without_its_newline_at_the_end_counts(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, stdin=b"one\ntwo")
    assert shell.ok("consume", topic, "-e") == b"one\ntwo\n"


def test_many_lines_go_through_all_queues_and_come_back_in_order(shell: Shell, topic: str) -> None:
    stream = joined(b"%d" % number for number in range(20_000))
    summary = shell.json("produce", "produce", topic, stdin=stream)
    assert summary["stored"] == 20_000
    assert summary["size_bytes"] == len(stream) - 20_000
    assert [entry["queue"] for entry in summary["queues"]] == list(range(8))
    assert sum(entry["stored"] for entry in summary["queues"]) == 20_000
    assert all(entry["last_offset"] - entry["first_offset"] + 1 == entry["stored"] for entry in summary["queues"])
    assert shell.ok("consume", topic, "-e") == stream


def test_an_empty_stream_is_no_message(shell: Shell, topic: str) -> None:
    assert shell.json("produce", "produce", topic)["stored"] == 0


@pytest.mark.parametrize(
    ("words", "stream"),
    [
        (("-0",), b"a\0b\0\0c\n\0"),
        (("--delimiter", "--"), b"a--b----c\n"),
        (("--delimiter", r"\x1e"), b"a\x1eb\x1e\x1ec\n"),
    ],
    ids=["nul", "text", "escape"],
)
def test_other_delimiters_end_messages_too(shell: Shell, topic: str, words: tuple[str, ...], stream: bytes) -> None:
    shell.ok("produce", topic, *words, stdin=stream)
    assert shell.ok("consume", topic, "-e", "-f", "[%s]") == b"[a][b][][c\n]"


def test_a_file_is_one_message(shell: Shell, topic: str, tmp_path: Path) -> None:
    contents = [b"line\nline\n", bytes(range(256)) * 4000]
    words = []
    for number, content in enumerate(contents):
        path = tmp_path / str(number)
        path.write_bytes(content)
        words += ["--file", str(path)]
    shell.ok("produce", topic, *words)
    assert shell.ok("consume", topic, "-e", "-f", "%s") == b"".join(contents)


def test_the_line_number_goes_wherever_it_is_asked_for(shell: Shell, topic: str) -> None:
    words = ("--key", "k{n}", "--tag", "t{n}", "-P", "line={n}", "-P", "fixed=x")
    shell.ok("produce", topic, *words, stdin=b"a\nb\nc\n")
    out = shell.ok("consume", topic, "-e", "-f", r"%k %g %h %s\n")
    assert out == b"".join(b"k%d t%d line=%d,fixed=x %c\n" % (n, n, n, 96 + n) for n in (1, 2, 3))


def test_keys_are_numbered_through_all_batches(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "--key", "{n}", stdin=joined([b"x"] * 1500))
    assert shell.ok("consume", topic, "-e", "-f", r"%k\n") == joined(b"%d" % n for n in range(1, 1501))


def test_a_message_group_stays_in_one_queue(shell: Shell, topic: str) -> None:
    summary = shell.json("produce", "produce", topic, "--message-group", "o-42", stdin=joined([b"x"] * 1500))
    assert len(summary["queues"]) == 1


def test_a_queue_can_be_named(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "creates it")
    assert [
        line["queue"] for line in shell.lines("produce-line", "produce", topic, "--queue", "5", stdin=b"a\nb\n")
    ] == [5, 5]
    assert shell.fails(64, "produce", topic, "x", "--queue", "8")["type"] == "UsageError"


def test_each_line_of_jsonl_says_where_a_message_is(shell: Shell, topic: str) -> None:
    lines = shell.lines("produce-line", "produce", topic, stdin=b"a\nb\n")
    read = shell.lines("message", "consume", topic, "-e")
    assert [line["message_id"] for line in lines] == [line["message_id"] for line in read]
    assert [line["offset"] for line in lines] == [line["offset"] for line in read]


def test_lines_are_stored_while_the_stream_is_still_open(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    with shell.start("produce", topic) as process:
        assert process.stdin is not None
        for body in (b"one", b"two"):
            process.stdin.write(body + b"\nhalf")
            process.stdin.flush()
            [message] = shmq_shared_broker.expect(topic, timeout=30)
            assert message.body in (body, b"half" + body)
        process.stdin.close()
        assert process.wait(30) == 0


def test_lines_before_one_that_is_too_long_are_stored_and_counted(shell: Shell, topic: str) -> None:
    result = shell.run("produce", topic, stdin=b"one\ntwo\n" + b"x" * (5 << 20) + b"\nthree\n")
    assert result.status == 65
    assert "stored 2 messages" in result.err and "message 3 and what follows it are not stored" in result.err
    assert shell.ok("consume", topic, "-e") == b"one\ntwo\n"


def test_without_a_broker_it_says_how_to_start_one(tmp_path: Path) -> None:
    error = Shell(SHMQ_RUNTIME_DIR=str(tmp_path)).fails(69, "produce", "hello", "hi")
    assert error["type"] == "BrokerNotRunning" and error["hint"].endswith("shmq serve")


def test_an_unknown_topic_is_refused_where_topics_are_not_made_on_first_use(
    shmq_broker_factory: Callable[..., Broker],
) -> None:
    shell = Shell(shmq_broker_factory(auto_create=False).url)
    shell.ok("topic", "create", "orders")
    error = shell.fails(1, "produce", "ordres", "hi")
    assert error["type"] == "TopicNotFound" and '"orders"' in error["hint"]
    shell.ok("produce", "orders", "hi")


def test_a_reserved_property_is_refused(shell: Shell, topic: str) -> None:
    assert shell.fails(64, "produce", topic, "x", "-P", "KEYS=1")["type"] == "UsageError"


class Flaky:
    """Stands for a producer whose broker is busy: the real one cannot be made to fail at a chosen call."""

    def __init__(self, *errors: shmq.ShmqError) -> None:
        self.errors = list(errors)
        self.stored: list[bytes] = []

    def send(self, topic: str, body: bytes, **arguments: Any) -> Any:
        return self.send_batch(topic, [body])[0]

    def send_batch(self, topic: str, bodies: Sequence[bytes], **arguments: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        first = len(self.stored)
        self.stored += bodies
        return [SimpleNamespace(queue_id=0, offset=first + index) for index in range(len(bodies))]


def sender(producer: Flaky, timeout: float) -> Sender:
    call = Call(timeout=timeout)
    call.style.quiet = True
    stand_in: Any = producer
    return Sender(stand_in, "t", Attributes(), call)


def test_a_busy_broker_is_waited_for_and_nothing_is_stored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_sender, "PAUSE", 0.0)
    flaky = Flaky(shmq.BrokerBusy("busy"), shmq.SegmentFull("full"), shmq.BrokerNotRunning("restarting"))
    bodies = [b"%d" % number for number in range(1200)]
    sending = sender(flaky, 60.0)
    sending.send(bodies)
    assert flaky.stored == bodies
    assert sending.stored.count == 1200


@pytest.mark.parametrize("error", [shmq.SendTimeout("in the log"), shmq.ReadOnlyStore("full disk")], ids=type)
def test_what_must_not_or_cannot_be_repeated_is_not(error: shmq.ShmqError) -> None:
    flaky = Flaky(error)
    sending = sender(flaky, 60.0)
    with pytest.raises(type(error)):
        sending.send([b"a"])
    assert flaky.stored == [] and sending.stored.count == 0


def test_what_may_be_stored_is_not_sent_again_and_what_is_stored_is_counted() -> None:
    late = shmq.RequestTimeout("no answer in time")
    late.maybe_stored = True
    late.receipts = [SimpleNamespace(queue_id=0, offset=offset) for offset in range(2)]
    sending = sender(Flaky(late), 60.0)
    with pytest.raises(shmq.RequestTimeout):
        sending.send([b"a", b"b", b"c"])
    assert (sending.stored.count, sending.stored.size_bytes) == (2, 2)


def test_patience_ends_with_the_timeout() -> None:
    flaky = Flaky(*[shmq.BrokerBusy("busy")] * 3)
    with pytest.raises(shmq.BrokerBusy):
        sender(flaky, 0.0).send([b"a"])
    assert len(flaky.errors) == 2


def test_batches_stay_below_what_is_stored_under_one_lock() -> None:
    flaky = Flaky()
    sizes: list[int] = []
    store = flaky.send_batch

    def counting(topic: str, bodies: Sequence[bytes], **arguments: Any) -> Any:
        sizes.append(sum(map(len, bodies)))
        return store(topic, bodies)

    flaky.send_batch = counting  # type: ignore[method-assign]
    bodies = [b"x" * 50_000] * 9 + [b"y" * 300_000, b"z"]
    sender(flaky, 1.0).send(bodies)
    assert flaky.stored == bodies
    assert all(size <= message_sender.BATCH_BYTES_MAX or size == 300_000 for size in sizes)


def test_json_of_a_failed_call_still_says_what_is_stored(shell: Shell, topic: str) -> None:
    result = shell.run("produce", topic, "--json", stdin=b"one\n" + b"x" * (5 << 20) + b"\n")
    assert result.status == 65
    assert json.loads(result.out)["stored"] == 1
    assert json.loads(result.err)["type"] == "MessageTooLarge"


def test_an_interrupted_call_says_how_much_is_stored(shell: Shell, topic: str) -> None:
    with shell.start("produce", topic, "--json") as process:
        assert process.stdin is not None
        process.stdin.write(joined([b"x"] * 100_000))
        process.stdin.flush()
        until(lambda: _stored(shell, topic), "the first lines")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (130, b"")
    assert json.loads(out)["stored"] == _stored(shell, topic)


def _stored(shell: Shell, topic: str) -> int:
    result = shell.run("topic", "show", topic, "--json")
    messages: int = json.loads(result.out)["messages"] if result.status == 0 else 0
    return messages


def test_a_topic_that_looks_misspelt_is_made_and_named(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    assert "is new" not in shell.run("produce", topic, "first").err  # nothing is near it
    misspelt = topic.replace("hello", "helol")
    first = shell.run("produce", misspelt, stdin=b"a\nb\n")
    assert first.status == 0
    assert first.err.splitlines()[0] == f'topic "{misspelt}" is new; did you mean "{topic}"?'
    assert "stored 2 messages" in first.err.splitlines()[1]
    assert "is new" not in shell.run("produce", misspelt, "c").err
    with shmq_shared_broker.connect() as mq:
        assert mq.admin.topics[misspelt].messages == 3


def test_over_tcp_a_misspelt_topic_is_named_to_accounts_that_may_look(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    with Broker(tcp=True, acl=str(accounts)) as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders")
        names = f"rocketmq://{broker.name_server}"
        may_send = Shell(f"{names}?access_key=order-service&secret_key=secret-of-orders")
        may_look = Shell(f"{names}?access_key=operations&secret_key=secret-of-operations")
        shown = may_look.run("produce", "ordesr", "x")
        assert shown.status == 0 and shown.err.startswith('topic "ordesr" is new; did you mean "orders"?\n'), shown
        sent = may_send.run("produce", "ordres", "x")
        assert sent.status == 0 and sent.err.startswith("stored 1 message"), sent
