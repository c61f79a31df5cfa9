"""The unit is one that systemd takes, and keeps what a broker in shared memory needs."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tools.shell import Shell


def unit_of(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def test_it_runs_as_a_fixed_user_whose_ipc_stays() -> None:
    document = Shell().json("systemd", "systemd")
    service = unit_of(document["unit"])["Service"]
    assert document["path"] == "/etc/systemd/system/shmq.service"
    assert (service["User"], service["Type"], service["RemoveIPC"]) == ("shmq", "notify", "no")
    assert "DynamicUser" not in service and "PrivateIPC" not in service
    assert service["RuntimeDirectoryPreserve"] == "restart" and int(service["WatchdogSec"]) > 0
    assert service["LimitCORE"] == "0" and service["LimitMEMLOCK"] == "infinity"


def test_options_of_serve_are_passed_on_quoted() -> None:
    out = Shell().ok(
        "systemd", "--name", "orders", "--program", "/opt/shmq", "--", "--delay-levels", "1s 100%", "--metrics=9"
    )
    command = unit_of(out.decode())["Service"]["ExecStart"]
    assert command.startswith("/opt/shmq serve --name orders --store /var/lib/shmq/orders --log-format json ")
    assert command.endswith('--delay-levels "1s 100%%" --metrics=9')
    assert b"/etc/systemd/system/shmq-orders.service" in out


@pytest.mark.parametrize("words", [("--user", "Bad User"), ("--name", "a/b"), ("--program", "shmq")])
def test_what_cannot_stand_in_a_unit_is_refused(words: tuple[str, ...]) -> None:
    assert Shell().fails(64, "systemd", *words)["error"]
    assert Shell().run("systemd", "--", "--store\n[Install]").status == 64


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    unit = tmp_path / "shmq.service"
    unit.write_bytes(Shell().ok("systemd"))
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in (result.stdout + result.stderr).splitlines() if "shmq" in line]
    assert (result.returncode, ours) == (0, [])
