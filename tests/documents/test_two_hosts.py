"""README's "Two hosts", pasted on two hosts: what is acknowledged outlives the host that acknowledged it."""

import re
from pathlib import Path

import pytest

from tests.deadline import eventually
from tests.ha.hosts import Host, needs_hosts, two_hosts

pytestmark = pytest.mark.slow

README = Path(__file__).resolve().parents[2] / "README.md"


def commands() -> list[tuple[str, str]]:
    """The host and the command of each line that is to be typed, in their order."""
    section = re.search(r"^## Two hosts\n(.*?)^## ", README.read_text(), re.M | re.S)
    assert section is not None
    return re.findall(r"^([ab])\$ (.*)$", section[1], re.M)


@needs_hosts
def test_the_second_host_takes_over_what_the_first_has_acknowledged(tmp_path: Path) -> None:
    typed = commands()
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


def _serve(host: Host, command: str) -> None:
    log = host.start(command)
    eventually(lambda: "ready" in log.read_text(), log.read_text)
