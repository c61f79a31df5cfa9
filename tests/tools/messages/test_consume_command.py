"""What `shmq consume` prints is what is stored, in the order of the log; what a group was given is settled after it."""

import csv
import io
import json
import os
import pty
import re
import signal
from pathlib import Path

import pytest

from shmq.testing import Broker, SharedBroker
from tests.conformance.foreign import store_foreign
from tests.tools.json_schema import check
from tests.tools.shell import TIMEOUT, Shell, interrupt, joined, until


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


def fill(broker: SharedBroker, topic: str, count: int) -> list[bytes]:
    """Send numbered messages one by one, so that they go round all queues."""
    bodies = [b"%d" % number for number in range(count)]
    with broker.connect() as mq:
        for body in bodies:
            mq.send(topic, body, tag="even" if int(body) % 2 == 0 else "odd", key=body.decode())
    return bodies


def lag(shell: Shell, group: str) -> int:
    shown = shell.json("group-show", "group", "show", group)
    value: int = shown["lag"]
    return value


# -- without a group


def test_all_queues_are_read_in_the_order_of_the_log(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    bodies = fill(shmq_shared_broker, topic, 2000)
    assert shell.ok("consume", topic, "-e") == joined(bodies)


def test_reading_without_a_group_leaves_no_trace(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    fill(shmq_shared_broker, topic, 3)
    first = shell.ok("consume", topic, "-e")
    assert shell.ok("consume", topic, "-e") == first
    assert shell.json("topic-show", "topic", "show", topic)["groups"] == []


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (("-n", "5"), 0, 5),
        (("-o", "begin", "-n", "1"), 0, 1),
        (("-o", "end"), 40, 40),
        (("-o", "-7"), 33, 40),
        (("-o", "-1000"), 0, 40),
        (("-o", "-7", "-n", "2"), 33, 35),
        (("-o", "3"), 24, 40),
        (("-o", "-1h"), 0, 40),
        (("-o", "2000-01-01T00:00:00Z"), 0, 40),
        (("-o", "2999-01-01"), 40, 40),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_reading_begins_and_ends_at_the_given_positions(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker, words: tuple[str, ...], first: int, last: int
) -> None:
    bodies = fill(shmq_shared_broker, topic, 40)  # 5 in each of 8 queues
    assert shell.ok("consume", topic, "-e", *words) == joined(bodies[first:last])


def test_a_place_that_is_none_is_refused(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "x")
    assert shell.fails(64, "consume", topic, "-e", "-o", "somewhere")["type"] == "UsageError"


def test_tags_select_messages(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    bodies = fill(shmq_shared_broker, topic, 1000)
    assert shell.ok("consume", topic, "-e", "-t", "odd") == joined(bodies[1::2])
    assert shell.ok("consume", topic, "-e", "-t", "odd || even", "-n", "7") == joined(bodies[:7])
    assert shell.ok("consume", topic, "-e", "-t", "none") == b""
    shell.fails(64, "consume", topic, "-e", "-t", "a || ")


def test_an_expression_selects_messages(shell: Shell, topic: str, group: str, shmq_shared_broker: SharedBroker) -> None:
    with shmq_shared_broker.connect() as mq:
        for number in range(100):
            mq.send(topic, b"%d" % number, tag="odd" if number % 2 else "even", properties={"n": str(number)})
    where = ("--where", "n BETWEEN 90 AND 95")
    assert shell.ok("consume", topic, "-e", *where) == joined([b"%d" % n for n in range(90, 96)])
    assert shell.ok("consume", topic, "-e", *where, "-t", "odd") == joined([b"91", b"93", b"95"])
    assert sorted(shell.ok("consume", topic, "-e", "-g", group, *where).split()) == [b"%d" % n for n in range(90, 96)]
    assert lag(shell, group) == 0
    refused = shell.fails(65, "consume", topic, "-e", "--where", "n LIKE '9'")
    assert refused["type"] == "FilterSyntaxError" and "      ^^^^" in str(refused)


def test_a_format_decides_every_byte(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    fill(shmq_shared_broker, topic, 2)
    assert (
        shell.ok("consume", topic, "-e", "-f", r"%t %k %g %S %s;") == f"{topic} 0 even 1 0;{topic} 1 odd 1 1;".encode()
    )
    shell.fails(64, "consume", topic, "-e", "-f", "%z")


def test_csv_has_one_line_of_names_and_a_column_for_bodies_that_are_no_text(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, b'say "hi"', key="a")
        mq.send(topic, b"\xff\xfe", key="b")
    rows = list(csv.DictReader(io.StringIO(shell.ok("consume", topic, "-e", "--output", "csv").decode())))
    assert [(row["key"], row["body"], row["body_base64"]) for row in rows] == [("a", 'say "hi"', ""), ("b", "", "//4=")]


def test_after_what_is_stored_it_waits_for_more_until_ctrl_c(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    bodies = fill(shmq_shared_broker, topic, 3)
    with shell.start("consume", topic) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in bodies] == [b"0\n", b"1\n", b"2\n"]
        shell.ok("produce", topic, stdin=b"three\nfour\n")
        assert process.stdout.readline() + process.stdout.readline() == b"three\nfour\n"
        assert interrupt(process) == (130, b"", "")


def test_a_consumer_may_come_before_the_topic(shell: Shell, topic: str) -> None:
    with shell.start("consume", topic, "-n", "1") as process:
        until(lambda: topic in shell.ok("topic", "list").decode(), "the topic")
        shell.ok("produce", topic, "first")
        out, said = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (0, b"first\n")
    assert f'topic "{topic}" is new' in said.decode()


MISSPELT = [("tail",), ("consume",), ("consume", "-g", "new-members"), ("reply", "--exec", "cat")]


@pytest.mark.parametrize("words", MISSPELT, ids=" ".join)
def test_a_misspelt_topic_is_not_made_and_waited_for(shell: Shell, topic: str, words: tuple[str, ...]) -> None:
    shell.ok("topic", "create", topic)
    verb, *options = words
    misspelt = topic.replace("orders", "ordres")
    refused = shell.fails(1, verb, misspelt, *options)
    assert refused["type"] == "TopicNotFound" and "--create" in refused["hint"], refused
    assert f'did you mean "{topic}"' in refused["hint"]
    listed = shell.ok("topic", "list").decode()
    assert misspelt not in listed and topic in listed


@pytest.mark.parametrize(
    ("exists", "wanted", "options", "said"),
    [
        ("{}-last", "{}-lost", ["--create"], 'topic "{}-lost" is new: nothing has been sent to it\n'),
        ("{}-of-7", "{}-of-8", [], 'topic "{}-of-8" is new'),
        ("{}-in-eu", "{}-in-us", [], 'topic "{}-in-us" is new: nothing has been sent to it; did you mean "{}-in-eu"?'),
    ],
    ids=["asked for", "next of a series", "two slips away"],
)
def test_a_topic_that_may_well_be_meant_is_made(
    shell: Shell, topic: str, exists: str, wanted: str, options: list[str], said: str
) -> None:
    shell.ok("topic", "create", exists.format(topic))
    with shell.start("tail", wanted.format(topic), *options) as process:
        until(lambda: process.poll() is not None or wanted.format(topic) in shell.ok("topic", "list").decode(), "it")
        ended = interrupt(process)
    assert said.format(topic, topic) in ended.err, ended


@pytest.mark.parametrize("words", [(), ("-g", "members")], ids=["alone", "group"])
@pytest.mark.slow
def test_over_tcp_a_misspelt_topic_is_refused_too_and_create_makes_it(words: tuple[str, ...]) -> None:
    with Broker(tcp=True) as broker:
        shell = Shell(f"rocketmq://{broker.name_server}")
        shell.ok("topic", "create", "orders")
        assert shell.fails(1, "consume", "ordres", *words)["type"] == "TopicNotFound"
        assert "ordres" not in shell.ok("topic", "list").decode()
        with shell.start("consume", "ordres", "--create", *words) as process:
            until(lambda: process.poll() is not None or "ordres" in shell.ok("topic", "list").decode(), "the topic")
            ended = interrupt(process)
        assert (ended.status, ended.out) == (130, b"") and 'topic "ordres" is new' in ended.err, ended


def test_the_end_of_a_missing_topic_is_not_found_for_a_group_either(shell: Shell, topic: str, group: str) -> None:
    assert shell.fails(1, "consume", topic, "-g", group, "-e")["type"] == "TopicNotFound"
    assert topic not in shell.ok("topic", "list").decode()
    assert group not in shell.ok("group", "list").decode()


def test_nothing_is_skipped_or_repeated_between_the_stored_and_the_new(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    count = 3000
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, b"0")
        with shell.start("consume", topic, "-n", str(count)) as process:
            for number in range(1, count):
                mq.send(topic, b"%d" % number)
            out, _ = process.communicate(timeout=TIMEOUT)
    assert sorted(map(int, out.split())) == list(range(count))


def test_a_missing_topic_at_the_end_is_a_no(shell: Shell, topic: str) -> None:
    assert shell.fails(1, "consume", topic, "-e")["type"] == "TopicNotFound"
    assert topic not in shell.ok("topic", "list").decode()


def test_nothing_to_consume_is_a_no_only_when_asked(shell: Shell, topic: str, group: str) -> None:
    shell.ok("topic", "create", topic)
    assert shell.run("consume", topic, "-e") == (0, b"", "")
    assert shell.run("consume", topic, "--exit-if-empty") == (1, b"", "nothing to consume\n")
    assert shell.run("consume", topic, "--exit-if-empty", "-g", group).status == 1
    shell.ok("produce", topic, "x")
    assert shell.run("consume", topic, "--exit-if-empty") == (0, b"x\n", "")


def test_waiting_ends_with_the_timeout(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, "x")
    for words in ((), ("-g", group)):
        result = shell.run("consume", topic, *words, "--timeout", "200ms")
        assert (result.status, result.out) == (75, b"x\n")
        assert "came within 0.2 s" in result.err


def test_a_closed_pipe_ends_it_quietly(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    with shmq_shared_broker.connect() as mq, mq.producer() as producer:
        producer.send_batch(topic, [b"x" * 1000] * 500)
    with shell.start("consume", topic) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        shell.ok("produce", topic, stdin=joined([b"more"] * 100_000))  # until the pipe is full for certain
        assert process.wait(TIMEOUT) == 0
        assert process.stderr.read() == b""


def test_tail_prints_the_last_and_follows(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    bodies = fill(shmq_shared_broker, topic, 25)
    assert shell.ok("tail", topic, "-e") == joined(bodies[-10:])
    assert shell.ok("tail", topic, "-e", "-n", "0") == b""
    assert shell.json("consume", "tail", topic, "-e", "-n", "3")["count"] == 3
    assert [line["body"] for line in shell.lines("message", "tail", topic, "-e", "-n", "2")] == ["23", "24"]
    with shell.start("tail", topic, "-n", "2") as process:
        assert process.stdout is not None
        assert process.stdout.readline() + process.stdout.readline() == b"23\n24\n"
        shell.ok("produce", topic, "new")
        assert process.stdout.readline() == b"new\n"
        assert interrupt(process).status == 130


# -- forms


def test_json_is_one_document_of_all_messages(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    bodies = fill(shmq_shared_broker, topic, 3)
    document = shell.json("consume", "consume", topic, "-e")
    assert [entry["body"].encode() for entry in document["messages"]] == bodies
    assert (document["count"], document["topic"], document["group"]) == (3, topic, None)
    assert shell.json("consume", "consume", topic, "-e", "-o", "end")["messages"] == []


def test_json_is_complete_also_when_it_is_interrupted(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "x")
    with shell.start("consume", topic, "--json") as process:
        assert process.stdout is not None
        head = b""
        while b'"body":"x"' not in head:
            head += os.read(process.stdout.fileno(), 4096)
        result = interrupt(process)
    document = json.loads(head + result.out)
    check("consume", document)
    assert (result.status, document["count"]) == (130, 1)


def test_jsonl_is_one_line_for_each_message(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "text", "--tag", "t", "--key", "k", "-P", "a=1", "--message-group", "g")
    shell.ok("produce", topic, b"\xff".decode("utf-8", "surrogateescape"))
    first, second = shell.lines("message", "consume", topic, "-e")
    assert (first["body"], first["tag"], first["keys"], first["properties"]) == ("text", "t", ["k"], {"a": "1"})
    assert first["message_group"] == "g"
    assert (second["body"], second["body_base64"]) == (None, "/w==")


def test_verbose_tells_time_place_tag_and_key_also_in_a_pipe(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "17", "--tag", "fruit", "--key", "17", "-P", "region=eu")
    result = shell.run("consume", topic, "-e", "-v")
    assert re.fullmatch(rb"\d\d:\d\d:\d\d\.\d{3}  q\d@0  fruit  key=17  region=eu  17\n", result.out)
    assert result.err == "1 message\n"


def test_on_a_terminal_a_body_cannot_steer_it(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, "\x1b[2Jred\x07")
    ours, theirs = pty.openpty()
    try:
        with shell.start("consume", topic, "-e", stdout=theirs) as process:
            assert process.wait(TIMEOUT) == 0
        out = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    assert re.fullmatch(rb"\d\d:\d\d:\d\d\.\d{3}  q\d@0  \\x1b\[2Jred\\x07\r\n", out)


# -- with a group


def test_a_group_goes_on_where_it_stopped(
    shell: Shell, topic: str, group: str, shmq_shared_broker: SharedBroker
) -> None:
    bodies = fill(shmq_shared_broker, topic, 20)
    first = shell.ok("consume", topic, "-g", group, "-n", "7").split()
    rest = shell.ok("consume", topic, "-g", group, "-e").split()
    assert len(first) == 7 and sorted(first + rest) == sorted(bodies)
    assert shell.ok("consume", topic, "-g", group, "-e") == b""
    assert lag(shell, group) == 0


def test_a_new_group_may_begin_at_the_end(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, "old")
    assert shell.ok("consume", topic, "-g", group, "-o", "end", "-e") == b""
    shell.ok("produce", topic, "new")
    assert shell.ok("consume", topic, "-g", group, "-o", "end", "-e") == b"new\n"
    shell.fails(64, "consume", topic, "-g", group, "-o", "-5")


def test_two_members_share_the_messages(shell: Shell, topic: str, group: str, shmq_shared_broker: SharedBroker) -> None:
    shell.ok("topic", "create", topic)
    members = [shell.start("consume", topic, "-g", group) for _ in range(2)]
    try:
        until(lambda: len(_readers(shell, group)) == 2, "both members to read")
        bodies = fill(shmq_shared_broker, topic, 400)
        until(lambda: lag(shell, group) == 0, "all messages")
        outputs = [interrupt(member) for member in members]
    finally:
        for member in members:
            member.kill()
            member.communicate()
    assert [output.status for output in outputs] == [130, 130]
    received = [output.out.split() for output in outputs]
    assert all(received) and sorted(received[0] + received[1]) == sorted(bodies)


def _readers(shell: Shell, group: str) -> list[int]:
    result = shell.run("group", "show", group, "--json")
    readers: list[int] = json.loads(result.out)["readers"] if result.status == 0 else []
    return readers


def test_what_was_not_written_is_not_acknowledged(
    shell: Shell, topic: str, group: str, shmq_shared_broker: SharedBroker
) -> None:
    with shmq_shared_broker.connect() as mq:
        for number in range(1000):
            mq.send(topic, b"%0999d" % number)
    with shell.start("consume", topic, "-g", group) as process:
        assert process.stdout is not None
        written = process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT) == 0
    again = shell.ok("consume", topic, "-g", group, "-e").splitlines()
    # At most what fits into a pipe beside the first line may have been taken for written.
    assert len(again) >= 1000 - 256 - 1
    assert {int(line) for line in [written, *again]} <= set(range(1000))


def test_a_killed_member_loses_nothing(shell: Shell, topic: str, group: str, shmq_shared_broker: SharedBroker) -> None:
    fill(shmq_shared_broker, topic, 5)
    with shell.start("consume", topic, "-g", group, "--exec", "sleep 60") as process:
        until(lambda: _readers(shell, group), "the member to read")
        process.send_signal(signal.SIGKILL)
    assert sorted(shell.ok("consume", topic, "-g", group, "-e").split()) == [b"0", b"1", b"2", b"3", b"4"]


# -- exec


def test_exec_gets_the_body_and_knows_where_it_is_from(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, "apples", "--tag", "fruit", "--key", "k")
    script = 'echo "$(cat) $SHMQ_TOPIC $SHMQ_OFFSET $SHMQ_KEY $SHMQ_TAG $SHMQ_ATTEMPT"'
    assert shell.ok("consume", topic, "-g", group, "-e", "--exec", script) == f"apples {topic} 0 k fruit 1\n".encode()
    assert lag(shell, group) == 0


def test_a_failed_exec_gives_the_message_back(
    shmq_shared_broker: SharedBroker, shell: Shell, topic: str, group: str
) -> None:
    shell.ok("produce", topic, stdin=b"good\nbad\nfine\n")
    result = shell.run("consume", topic, "-g", group, "-e", "--exec", "! grep -q bad")
    assert result.status == 1
    assert "the command ended with 1; it comes again after attempt 1" in result.err
    with shmq_shared_broker.connect() as mq:
        waiting = mq.browse("SCHEDULE_TOPIC_XXXX", limit=10_000)
    retries = [message for message in waiting if message.properties["REAL_TOPIC"] == f"%RETRY%{group}"]
    assert [(message.body, message.attempt) for message in retries] == [(b"bad", 2)]
    assert lag(shell, group) == 0


def test_a_failed_exec_without_a_group_is_reported_and_the_next_one_runs(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, stdin=b"bad\ngood\n")
    result = shell.run("consume", topic, "-e", "--exec", "tee /dev/stderr | grep good")
    assert (result.status, result.out) == (1, b"good\n")
    assert "ended with 1" in result.err


def test_exec_gets_any_word_that_another_client_has_stored(
    shmq_shared_broker: SharedBroker, shell: Shell, topic: str, group: str
) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    with shmq_shared_broker.connect() as mq:
        store_foreign(mq, topic, "TAGS\x01a\0b\tc\x02KEYS\x01k\0 l\x02")
    script = 'printf "%s|%s\\n" "$SHMQ_TAG" "$SHMQ_KEY"'
    assert shell.ok("consume", topic, "-g", group, "-e", "--exec", script) == b"a\\x00b\tc|k\\x00\n"
    assert lag(shell, group) == 0
    assert shell.run("consume", topic, "-e", "--exec", script).status == 0


@pytest.mark.parametrize(
    "sys_flag", [1, 1 | 1 << 8, 1 | 2 << 8, 1 | 7 << 8], ids=["zlib", "LZ4", "Zstandard", "unknown"]
)
def test_a_body_that_is_not_packed_as_its_sender_says_is_the_end_of_no_run(
    shmq_shared_broker: SharedBroker, shell: Shell, topic: str, group: str, sys_flag: int
) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, b"before")
        store_foreign(mq, topic, "", b"plain", sys_flag=sys_flag)
        mq.send(topic, b"after")
    for words in (("-g", group), ("-g", f"{group}-exec", "--exec", "cat; echo"), ()):
        result = shell.run("consume", topic, "-e", *words)
        assert (result.status, result.out) == (1, b"before\nafter\n")
        assert "q0@1: " in result.err
        assert ("it comes again after attempt 1" in result.err) == bool(words)
    for name in (group, f"{group}-exec"):
        assert lag(shell, name) == 0
        assert shell.run("consume", topic, "-g", name, "-e").out == b""
    document = shell.json("consume", "consume", topic, "-e")
    assert [(each["body"], each.get("body_base64")) for each in document["messages"]] == [
        ("before", None),
        (None, "cGxhaW4="),
        ("after", None),
    ]
    assert "body_error" in document["messages"][1]
    assert b"plain" in shell.ok("consume", topic, "-e", "-v")
    assert shell.ok("message", "show", topic, document["messages"][1]["message_id"]).endswith(b"plain\n")
    assert len(shell.json("message-find", "message", "find", topic)["messages"]) == 3


@pytest.mark.parametrize("born_ms", [-1, -(1 << 63), (1 << 63) - 1, 253_402_300_800_000])
def test_a_time_of_birth_that_is_no_time_is_null(
    shmq_shared_broker: SharedBroker, shell: Shell, topic: str, born_ms: int
) -> None:
    shell.ok("topic", "create", topic, "--queues", "1")
    with shmq_shared_broker.connect() as mq:
        store_foreign(mq, topic, "", born_ms=born_ms)
    (message,) = shell.json("consume", "consume", topic, "-e")["messages"]
    assert (message["body"], message["born"]) == ("x", None)


@pytest.mark.parametrize("command", ["tail", "consume"])
def test_more_messages_than_a_machine_can_count_are_all_of_them(shell: Shell, topic: str, command: str) -> None:
    shell.ok("produce", topic, stdin=b"a\nb\n")
    many = "9" * 23
    words = ("-n", many, "--timeout", "500ms") if command == "tail" else ("-e", "-o", f"-{many}")
    assert sorted(shell.run(command, topic, *words).out.split()) == [b"a", b"b"]


def test_an_exec_that_does_not_read_its_input_is_fine(shell: Shell, topic: str, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * 3_000_000)
    shell.ok("produce", topic, "--file", str(large))
    assert shell.ok("consume", topic, "-e", "--exec", "echo done") == b"done\n"


def test_without_a_broker_it_says_how_to_start_one(tmp_path: Path) -> None:
    shell = Shell(SHMQ_RUNTIME_DIR=str(tmp_path))
    for words in (("consume", "t"), ("consume", "t", "-g", "g"), ("tail", "t")):
        error = shell.fails(69, *words)
        assert error["type"] == "BrokerNotRunning" and error["hint"].endswith("shmq serve")


def test_the_readme_of_a_shell_user_works(shell: Shell, topic: str) -> None:
    """`cat FILE | shmq produce hello -` here, `shmq consume hello` there: every line, one by one."""
    page = Path(__file__).parents[3] / "docs/reference/cli.md"
    lines = page.read_bytes().splitlines(keepends=True)
    with shell.start("consume", topic) as reader:
        try:
            with page.open("rb") as file, shell.start("produce", topic, "-", stdin=file) as writer:
                _, err = writer.communicate(timeout=TIMEOUT)
            assert err.startswith(f"stored {len(lines)} messages".encode())
            assert reader.stdout is not None
            # What is read while it is written keeps its order by queue only.
            assert sorted(reader.stdout.readline() for _ in lines) == sorted(lines)
            assert interrupt(reader).status == 130
        finally:
            reader.kill()
