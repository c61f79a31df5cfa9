"""Settings can be seen and tried before a broker runs with them."""

import re
import tomllib
from pathlib import Path

import pytest

from shmq.protocol.codes import Request
from shmq.testing import Broker
from tests.tools.shell import Shell

ROOT = Path(__file__).parents[3]


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_what_is_shown_is_a_file_that_is_taken_again(shell: Shell, tmp_path: Path) -> None:
    first = tmp_path / "broker.toml"
    first.write_text('name = "orders"\nflush = "sync"\nfile-size = "64M"\nno-tcp = true\nflush-interval = "2s"\n')
    text = shell.ok("config", "show", str(first)).decode()
    assert tomllib.loads(text) == {
        "name": "orders",
        "flush": "sync",
        "file-size": 64 << 20,
        "no-tcp": True,
        "flush-interval": "2000ms",
    }
    assert '# log-format = "text"' in text and "# topic-max = 16384" in text
    whole = tmp_path / "whole.toml"
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    whole.write_text("\n".join(line for line in lines if not line.endswith(('= ""', "= 0"))))
    again = shell.json("config-show", "config", "show", str(whole))["settings"]
    shown = shell.json("config-show", "config", "show", str(first))["settings"]
    assert {name: again[name] for name in shown if name not in ("store", "runtime-dir")} == {
        name: shown[name] for name in shown if name not in ("store", "runtime-dir")
    }


def test_the_defaults_are_shown_without_a_file(shell: Shell) -> None:
    text = shell.ok("config", "show").decode()
    assert tomllib.loads(text) == {} and "# retention-hours = 72" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("retention-huors = 1", "did you mean retention-hours?"),
        ('flush = "often"', "often"),
        ("file-size = 5", "multiples of"),
        ("disk-warn-percent = 95", "have to rise"),
        ('tls-mode = "enforcing"', "needs a certificate"),
        ('delete-hour = "25"', "hours from 0 to 23"),
    ],
)
def test_what_no_broker_takes_is_refused_before_it_starts(shell: Shell, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(line + "\n")
    error = shell.fails(64, "config", "check", str(file))
    assert said in error["error"] + error["hint"], error


def test_a_refusal_names_a_command_that_there_is(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("bridges = 0\n")
    refused = shell.run("config", "check", str(file))
    assert refused.status == 64 and "see shmq serve --help" in refused.err


def test_an_empty_path_in_a_file_is_none_and_not_the_folder_of_the_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('store = ""\nacl = ""\n')
    shown = shell.ok("config", "show", str(file)).decode()
    assert str(tmp_path) not in shown and '# acl = ""' in shown


@pytest.mark.parametrize("option", ["--store", "--runtime-dir", "--acl", "--tls-cert"])
def test_an_empty_path_on_the_command_line_is_refused(shell: Shell, option: str) -> None:
    error = shell.fails(64, "serve", option, "")
    assert f"'{option}': the path is empty" in error["error"]


def test_a_file_that_is_fine_is_said_to_be(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("retention-hours = 5\nbridges = 2\n")
    assert shell.run("config", "check", str(file)).err.endswith(": fine\n")
    document = shell.json("config-check", "config", "check", str(file))
    assert document["settings_given"] == ["bridges", "retention-hours"]


def test_every_file_of_the_pages_is_fine(shell: Shell, tmp_path: Path) -> None:
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)]
    assert blocks
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        assert shell.json("config-check", "config", "check", str(file))["settings_given"]


def test_a_tilde_is_a_home_in_files_variables_and_words(tmp_path: Path) -> None:
    shell = Shell(HOME=str(tmp_path / "home"), SHMQ_STORE="~/by-variable")
    file = tmp_path / "broker.toml"
    file.write_text('store = "~/store"\nruntime-dir = "~/run"\ntls-cert = "cert"\ntls-key = "~/key"\n')
    found = shell.json("config-show", "config", "show", str(file))["settings"]
    names = ("store", "runtime-dir", "tls-cert", "tls-key")
    assert [found[name] for name in names] == [
        f"{tmp_path}/{path}" for path in ("home/store", "home/run", "cert", "home/key")
    ]
    assert shell.json("config-show", "config", "show")["settings"]["store"] == f"{tmp_path}/home/by-variable"
    file.write_text('store = "~no-such-user/store"\n')
    assert "~no-such-user" in shell.fails(64, "config", "check", str(file))["error"]


def test_a_broker_that_runs_says_its_settings_and_where_each_comes_from(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('name = "orders"\nretention-hours = 48\ndefault-queues = 3\nflush = "async"\nno-tcp = true\n')
    runtime_dir, sizes = tmp_path / "run", ("--file-size", "1M", "--topic-max", "64", "--queue-max", "256")
    url = f"shmq://{runtime_dir}"
    options = ("--config", str(file), "--store", str(tmp_path / "store"), "--runtime-dir", str(runtime_dir))
    shell.ok("serve", "--detach", *options, *sizes)
    try:
        shown = Shell(url).json("config-show", "config", "show", "--running")
        text = Shell(url).ok("config", "show", "--running").decode()
    finally:
        Shell(url).ok("stop")
    settings, origins = shown["settings"], shown["origins"]
    assert [settings[name] for name in ("retention-hours", "topic-max", "file-size", "bridges")] == [48, 64, 1 << 20, 1]
    of_the_file = dict.fromkeys(("name", "retention-hours", "default-queues", "flush", "no-tcp"), str(file))
    given = ("store", "runtime-dir", "file-size", "topic-max", "queue-max")
    assert origins == of_the_file | dict.fromkeys(given, "command line")
    assert f"retention-hours = 48  # {file}\n" in text and "\n# bridges = 1\n" in text
    assert tomllib.loads(text)["topic-max"] == 64


def test_a_setting_that_was_changed_since_the_start_is_shown_as_it_is(shmq_broker: Broker) -> None:
    shell = Shell(shmq_broker.url)
    with shmq_broker.connect() as mq:
        control = mq._local().wire.control
        control.request(Request.UPDATE_BROKER_CONFIG, body=b"defaultTopicQueueNums=5\nautoCreateTopicEnable=false\n")
    shown = shell.json("config-show", "config", "show", "--running")
    assert (shown["settings"]["default-queues"], shown["settings"]["no-auto-create"]) == (5, True)
    said = "changed since the start, until its end"
    assert (shown["origins"]["default-queues"], shown["origins"]["no-auto-create"]) == (said, said)


def test_settings_in_force_are_a_local_brokers_and_no_files(shmq_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("retention-hours = 1\n")
    assert "asks the broker" in Shell().fails(64, "config", "show", str(tmp_path / "broker.toml"), "--running")["error"]
    assert Shell("rocketmq://127.0.0.1:9").fails(64, "config", "show", "--running")
    shmq_broker.kill_daemon()
    Shell(shmq_broker.url).fails(69, "config", "show", "--running")


def test_a_setting_that_the_role_decides_says_so() -> None:
    with Broker(role="sync-master", ha_listen="127.0.0.1:0", tcp=True) as broker:
        shown = Shell(broker.url).json("config-show", "config", "show", "--running")
    assert (shown["settings"]["flush"], shown["origins"]["flush"]) == ("sync", "the role sync-master")
    assert "when-full" not in shown["origins"]
