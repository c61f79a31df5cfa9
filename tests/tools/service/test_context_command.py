"""Names for brokers: added, listed without secrets, used by -c and as the current one, forgotten."""

import json
import os
import stat
from pathlib import Path

import pytest

from shmq.errors import UsageError
from shmq.testing import Broker, SharedBroker
from shmq.tools.broker.contexts import current_url, load_contexts, save_contexts
from tests.tools.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell without a broker in its environment, and with contexts of its own."""
    return Shell(SHMQ_CONFIG_DIR=str(tmp_path / "config"), SHMQ_RUNTIME_DIR=str(tmp_path))


def test_a_name_stands_for_a_broker(shell: Shell, shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")
    shell.ok("context", "add", "here", shmq_shared_broker.url)
    shell.ok("-c", "here", "produce", topic, "hello")
    assert topic in shell.ok("topic", "list", "--context", "here").decode()
    assert shell.run("topic", "list").status == 69, "it is not the current one, and no broker is called default here"
    shell.ok("context", "use", "here")
    assert topic in shell.ok("topic", "list").decode()
    assert shell.run("topic", "list", "-u", "shmq://elsewhere").status == 69, "-u says more"
    assert shell.json("context-list", "context", "use")["contexts"][0]["current"] is False
    assert shell.run("topic", "list").status == 69


def test_a_user_without_a_home_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHMQ_CONFIG_DIR", "XDG_CONFIG_HOME", "HOME", "SHMQ_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # no passwd has it
    assert current_url() is None and load_contexts().urls == {}
    with pytest.raises(UsageError, match="no home") as refused:
        save_contexts(load_contexts())
    assert "SHMQ_CONFIG_DIR" in refused.value.hint


def test_the_environment_says_more_than_the_current_context(
    shell: Shell, shmq_shared_broker: SharedBroker, shmq_broker: Broker
) -> None:
    shmq_shared_broker.connect().close()
    shell.ok("context", "add", "here", shmq_shared_broker.url, "--use")
    other = Shell(shmq_broker.url, SHMQ_CONFIG_DIR=shell.environment["SHMQ_CONFIG_DIR"])
    assert other.json("topic-list", "topic", "list")["topics"] == []
    other.ok("produce", "here", "x", "-c", "here")
    assert other.json("topic-list", "topic", "list")["topics"] == [], "-c says more than the environment"


def test_lists_hide_secrets_and_the_file_is_its_owners(shell: Shell) -> None:
    url = "rocketmq://127.0.0.1:9876?access_key=me&secret_key=s3cret"
    shell.ok("context", "add", "prod", url)
    shell.json("context-list", "context", "add", "here", "shmq://default", "--use")
    document = shell.json("context-list", "context", "list")
    assert [(each["name"], each["current"]) for each in document["contexts"]] == [("here", True), ("prod", False)]
    assert "s3cret" not in json.dumps(document) + shell.ok("context", "list").decode()
    path = Path(shell.environment["SHMQ_CONFIG_DIR"]) / "contexts.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and "s3cret" in path.read_text()
    assert [each["name"] for each in shell.json("context-list", "context", "rm", "here")["contexts"]] == ["prod"]
    assert not any(each["current"] for each in shell.json("context-list", "context", "list")["contexts"])


@pytest.mark.parametrize(
    "words",
    [
        ("context", "add", "../x", "shmq://default"),
        ("context", "add", "x", "http://127.0.0.1"),
        ("context", "use", "prdo"),
        ("context", "rm", "nosuch"),
        ("-c", "prdo", "topic", "list"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(shell: Shell, words: tuple[str, ...]) -> None:
    shell.ok("context", "add", "prod", "shmq://default")
    is_missing = "add" not in words
    assert shell.fails(1 if is_missing else 64, *words)["hint"]
    assert [each["name"] for each in shell.json("context-list", "context", "list")["contexts"]] == ["prod"]


def test_a_damaged_file_is_named_and_not_written_over(shell: Shell) -> None:
    path = Path(shell.environment["SHMQ_CONFIG_DIR"]) / "contexts.json"
    path.parent.mkdir()
    for text in ("{", "[]", '{"contexts": {"a": 1}}', '{"current": "b", "contexts": {}}'):
        path.write_text(text)
        assert str(path) in shell.fails(64, "context", "add", "x", "shmq://default")["error"]
        assert path.read_text() == text
