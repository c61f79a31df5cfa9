"""README's "Two hosts", pasted on two hosts: what is acknowledged outlives the host that acknowledged it, and programs
go on when the master is elected anew."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import eventually
from tests.ha.etcd.server import needs_etcd
from tests.ha.hosts import Host, needs_hosts, two_hosts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def commands(*, elected: bool) -> list[tuple[str, str]]:
    """The host and the command of each line that is to be typed, in their order; those with an etcd stand last."""
    section = re.search(r"^## Two hosts\n(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S)
    assert section is not None
    blocks = re.findall(r"^```console\n(.*?)^```", section[1], re.M | re.S)
    return re.findall(r"^([ab])\$ (.*)$", "".join(blocks[-1:] if elected else blocks[:-1]), re.M)


@needs_hosts
def test_the_second_host_takes_over_what_the_first_has_acknowledged(tmp_path: Path) -> None:
    typed = commands(elected=False)
    with two_hosts(tmp_path, "10.0.0.4", "10.0.0.5") as (first, second):
        hosts = {"a": first, "b": second}
        for name, command in typed:
            if command.startswith("shmq serve"):
                _serve(hosts[name], command)
        eventually(lambda: "in sync" in first.run("shmq cluster status"), lambda: first.run("shmq cluster status"))
        for name, command in typed:
            if command.startswith("shmq cluster promote"):
                first.die()
            if not command.startswith("shmq serve"):
                said = hosts[name].run(command)
        assert "42 apples" in said
        second.run('shmq produce fruit "7 pears"')
        assert '"standing": "leads"' in second.run("shmq cluster status --json")


@needs_hosts
def test_the_first_host_comes_back_with_what_the_second_was_started_with_and_their_addresses_exchanged(
    tmp_path: Path,
) -> None:
    serving = {name: command for name, command in commands(elected=False) if command.startswith("shmq serve")}
    with two_hosts(tmp_path, "10.0.0.4", "10.0.0.5") as (first, second):
        _serve(first, serving["a"])
        _serve(second, serving["b"])
        eventually(lambda: "in sync" in first.run("shmq cluster status"), lambda: first.run("shmq cluster status"))
        first.run("shmq stop")
        second.run("shmq cluster promote")
        exchanged = {"10.0.0.4": "10.0.0.5", "10.0.0.5": "10.0.0.4"}
        _serve(first, re.sub("|".join(exchanged), lambda found: exchanged[found[0]], serving["b"]))
        eventually(
            lambda: "in sync" in second.run("shmq cluster status"),
            lambda: second.run("shmq cluster status") + first.run("shmq cluster status"),
        )


@needs_hosts
@needs_etcd()
def test_two_programs_go_on_when_the_master_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("urllib3")
    with two_hosts(tmp_path, "10.0.0.4", "10.0.0.5") as (first, second):
        hosts = {"a": first, "b": second}
        (second.directory / "examples").symlink_to(ROOT / "examples")
        programs = []
        for name, command in commands(elected=True):
            if command.startswith("shmq serve"):
                _serve(hosts[name], command)
                eventually(lambda: _status(first).get("standing") == "leads", lambda: str(_status(first)))
            elif command.startswith("etcd"):
                log = second.start(command)
                eventually(lambda log=log: "ready to serve client requests" in log.read_text(), log.read_text)
            elif command.startswith("python"):
                eventually(
                    lambda: len((_status(first).get("election") or {}).get("in_sync", ())) == 2,
                    lambda: str(_status(first)),
                )
                programs.append(second.start(command))
            elif command.startswith("pkill"):
                eventually(lambda: "500 acknowledged" in programs[0].read_text(), programs[0].read_text)
                first.start(command)
            else:
                for log, end in zip(programs, ("all 3000 acknowledged", "all 3000 received"), strict=True):
                    eventually(lambda log=log, end=end: end in log.read_text(), log.read_text)
                assert '"standing": "leads"' in second.run(f"{command} --json")


def _status(host: Host) -> dict[str, Any]:
    """What a host says of its brokers; nothing before its broker is served."""
    with contextlib.suppress(AssertionError):
        told: dict[str, Any] = json.loads(host.run("shmq cluster status --json"))
        return told
    return {}


def _serve(host: Host, command: str) -> None:
    log = host.start(command)
    eventually(lambda: "ready" in log.read_text(), log.read_text)
