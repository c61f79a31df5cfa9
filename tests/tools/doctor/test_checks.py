"""Store, network and consumers: what is wrong there is reported with numbers and a cure."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import shmq
from shmq.figures.snapshot import Group, Member
from shmq.figures.verdict import Finding
from shmq.shm.core import Store
from shmq.testing import Broker
from shmq.tools.doctor import consumers, disk, installation, machine, network
from shmq.tools.doctor import examine as examine_module
from shmq.tools.doctor.case import Case, open_case
from shmq.tools.doctor.finding import WORDS

MOUNT = "22 1 0:20 / / {mode},relatime - {kind} /dev/x {mode}\n"


@pytest.mark.parametrize(
    ("kind", "mode", "verdict", "words"),
    [
        ("ext4", "rw", "ok", "on ext4"),
        ("nfs4", "rw", "warn", "not safe"),
        ("fuse.sshfs", "rw", "warn", "not safe"),
        ("tmpfs", "rw", "warn", "reboot forgets"),
        ("overlay", "rw", "warn", "goes with the container"),
        ("ext4", "ro", "fail", "read-only"),
    ],
)
def test_the_file_system_of_the_store_is_judged(
    case_on: Callable[..., Case], kind: str, mode: str, verdict: str, words: str
) -> None:
    case = case_on({"/proc/self/mountinfo": MOUNT.format(kind=kind, mode=mode)})
    [found] = disk.check_file_system(case)
    assert WORDS[found.verdict] == verdict and words in found.what and (verdict == "ok" or found.do)


@pytest.mark.parametrize(("used", "verdict"), [(74, "ok"), (75, "warn"), (85, "warn"), (91, "fail")])
def test_a_full_disk_is_reported_at_the_brokers_own_marks(real: Case, used: int, verdict: str) -> None:
    assert real.snapshot.disk is not None
    marked = real.snapshot.disk._replace(used_percent=used, warn_percent=75, force_percent=85, refuse_percent=90)
    found = [f for f in disk.check_room(replace(real, snapshot=real.snapshot._replace(disk=marked)))]
    assert WORDS[found[-1].verdict] == verdict and f"{used} % used" in found[-1].what


def test_a_port_that_takes_no_connection_is_a_failure(real: Case) -> None:
    assert [WORDS[found.verdict] for found in network.check_ports(real)] == ["ok"]
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # and never listens
        port = unheard.getsockname()[1]
        broker = real.snapshot.broker._replace(tcp=f"127.0.0.1:{port}")
        deaf = replace(real, snapshot=real.snapshot._replace(broker=broker))
        [found] = [f for f in network.check_ports(deaf) if WORDS[f.verdict] != "ok"]
        assert WORDS[found.verdict] == "fail" and found.figures["port"] == port
        [found] = network.check_advertised(replace(real, options={"advertise": f"127.0.0.1:{port}"}))
        assert WORDS[found.verdict] == "fail" and "--advertise" in found.do
    [found] = network.check_advertised(replace(real, options={"advertise": "127.0.0.1:" + real.snapshot.broker.tcp.split(":")[1]}))  # fmt: skip  # noqa: E501
    assert WORDS[found.verdict] == "ok"


def test_a_link_to_other_hosts_without_a_shared_secret_is_warned_of(real: Case) -> None:
    def found(**options: str) -> list[str]:
        return [WORDS[finding.verdict] for finding in network.check_links(replace(real, options=options))]

    assert found() == [] and found(ha_listen="") == []
    assert found(ha_listen="127.0.0.1:10912") == ["ok"] and found(ha_listen="[::1]:10912") == ["ok"]
    assert found(ha_listen="127.0.0.1:10912", acl="accounts.yml") == ["warn"], "loopback is not trusted by itself then"
    assert found(ha_listen="127.0.0.1:10912", acl="accounts.yml", ha_allow="127.0.0.1/32") == ["ok"]
    assert found(ha_listen="10.0.0.4:10912", ha_secret_file="/etc/link") == ["ok"]
    assert found(ha_listen="10.0.0.4:10912") == found(ha_listen="0.0.0.0:10912") == ["warn"]
    [finding] = network.check_links(replace(real, options={"ha_listen": "10.0.0.4:10912"}))
    assert "--ha-secret-file" in finding.do


def test_addresses_are_read_as_they_are_written() -> None:
    assert network.split_address("0.0.0.0:10911") == ("127.0.0.1", 10911)
    assert network.split_address("[::]:9876") == ("::1", 9876)
    assert network.split_address("broker.example:1") == ("broker.example", 1)
    assert network.split_address("nothing") is None and network.split_address("") is None


def test_the_running_brokers_options_are_seen(real: Case) -> None:
    assert real.options["broker_name"] == real.place.broker_name and real.options["tcp"] is True


def test_the_library_of_this_command_is_known_by_the_file_that_is_mapped(real: Case) -> None:
    [found] = installation.check_libraries(real)
    own = os.path.realpath(str(sys.modules[Store.__module__].__file__))
    assert own in found.figures["libraries"]
    assert found.what.endswith("the same as this command") == (list(found.figures["libraries"]) == [own])


def test_members_that_subscribe_differently_are_reported(real: Case) -> None:
    [fine] = consumers.check_subscriptions(real)
    members = tuple(
        Member(name, "tcp", "java", None, True, {"orders": tags}) for name, tags in (("a", "x"), ("b", "y"))
    )
    group = Group("billing", "clustering", 0, 0, True, None, members, (), 12.0, 1, ())
    [found] = consumers.check_subscriptions(replace(real, snapshot=real.snapshot._replace(groups=(group,))))
    assert (WORDS[fine.verdict], WORDS[found.verdict]) == ("ok", "warn")
    assert "orders: x  |  orders: y" in found.what and found.figures["members"] == ["a", "b"]


def test_a_check_that_cannot_look_says_so_and_takes_no_other_with_it(
    real: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_secrets(_case: Case) -> Iterator[Finding]:
        raise PermissionError("not yours")
        yield

    monkeypatch.setattr(examine_module, "CHECKS", (check_secrets, machine.check_kernel))
    first, second = examine_module.examine(real)
    assert (first.check, WORDS[first.verdict]) == ("doctor.secrets", "warn") and "not yours" in first.what
    assert second.check == "machine.kernel"


def test_messages_that_came_again_are_counted_for_their_group_while_a_member_lives() -> None:
    with Broker(tcp=True) as broker, shmq.connect(f"rocketmq://{broker.name_server}") as mq:
        mq.send("orders", b"x")
        deadline = time.monotonic() + 30.0
        with contextlib.ExitStack() as stack:
            for group in ("slow", "slow_er"):
                opened = mq.simple_consumer("orders", group=group, invisible=1.0, start="begin")
                consumer = stack.enter_context(opened)
                attempt = 0
                while attempt < 2:  # it was not acknowledged, so the broker hands it out once more
                    assert time.monotonic() < deadline
                    for message in consumer.receive(wait=1.0):
                        attempt = message.attempt
                message.extend(600)
            found: list[Finding] = []
            while len(found) < 2:
                assert time.monotonic() < deadline
                with open_case(broker.url) as case:
                    found = list(consumers.check_overdue(case))
    assert [each.figures for each in found] == [{"group": group, "messages": 1} for group in ("slow", "slow_er")]
    assert all(WORDS[each.verdict] == "warn" and "msg.extend()" in each.do for each in found)
