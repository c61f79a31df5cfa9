"""`shmq doctor` finds what is wrong, says the cure, removes only what is dead, and packs a report without a message."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.instance import Instance, segment_names, write_instance
from shmq.shm.place import Place
from shmq.testing import Broker
from tests.shm.test_sweep import Broker as Segments
from tests.tools.shell import Shell

SECRET = "body-that-must-stay-hidden"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        with broker.connect() as mq:
            for number in range(200):
                mq.send("orders", f"{SECRET}-{number}".encode(), key=f"{SECRET}-key", properties={"p": SECRET})
        yield broker


@pytest.fixture
def shell(broker: Broker) -> Shell:
    return Shell(broker.url, SHMQ_SECRET_TOKEN=SECRET)


def finding(document: dict[str, Any], check: str) -> dict[str, Any]:
    [found] = [entry for entry in document["findings"] if entry["check"] == check]
    return dict(found)


def test_a_well_broker_has_no_failures_and_every_part_is_looked_at(shell: Shell, broker: Broker) -> None:
    document = shell.json("doctor", "doctor")
    assert document["verdict"] != "fail" and document["served"] and document["broker"] == broker.name
    parts = {entry["check"].split(".")[0] for entry in document["findings"]}
    assert parts == {"machine", "access", "memory", "installation", "broker", "store", "network", "consumers"}
    assert all(entry["fix"] for entry in document["findings"] if entry["verdict"] != "ok")
    content = finding(document, "store.content")["figures"]
    assert (content["records"], content["faults"], content["complete"]) == (200, 0, True)
    assert finding(document, "installation.versions")["verdict"] == "ok"
    files = len(os.listdir(f"/proc/{broker.processes['supervisor'].pid}/fd"))
    assert finding(document, "machine.limits")["figures"]["roles"]["supervisor"]["used_files"] == files


def test_people_get_lines_with_verdicts_and_what_to_do_next(shell: Shell) -> None:
    result = shell.run("doctor")
    lines = result.out.decode().splitlines()
    assert lines[0].startswith("shmq test-") and "runs  pid" in lines[0]
    assert all(line.startswith(("[ok]   ", "[warn] ", "[fail] ", "       fix: ")) for line in lines[1:])
    assert result.status == 0 and ("shmq doctor --bundle" in result.err or "nothing found" in result.err)


def test_a_bundle_holds_what_an_issue_needs_and_neither_messages_nor_secrets(
    shell: Shell, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "report.tar.gz"
    assert shell.json("doctor", "doctor", "--bundle", str(path))["bundle"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        parts = {entry.name.split("/", 1)[1]: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert {"report.txt", "doctor.json", "snapshot.json", "options.json", "environment.json"} <= parts.keys()
    assert {"segments.txt", "store.txt", "logs/broker.log"} <= parts.keys()
    assert json.loads(parts["options.json"])["broker_name"] == broker.name
    assert "SHMQ_SECRET_TOKEN" in json.loads(parts["environment.json"])["variables"]
    assert b"commitlog/00000000000000000000" in parts["store.txt"] and b"bridge.ready" in parts["logs/broker.log"]
    assert not [name for name, content in parts.items() if SECRET.encode() in content]
    assert shell.fails(64, "doctor", "--bundle", str(path))["error"].endswith("File exists")


def test_without_a_broker_the_host_is_examined_all_the_same(tmp_path: Path) -> None:
    shell = Shell(f"shmq://{tmp_path}/none", SHMQ_STORE=str(tmp_path / "store"))
    document = shell.json("doctor", "doctor")
    assert not document["served"] and finding(document, "machine.kernel")["figures"]["processors"] > 0
    assert finding(document, "store.content")["text"].startswith("no store at")


def test_fix_removes_what_is_dead_and_nothing_that_lives(tmp_path: Path) -> None:
    place = Place("doctored", tmp_path / "run" / "doctored")
    place.runtime_dir.mkdir(parents=True)
    shell = Shell(f"shmq://{place.runtime_dir}", SHMQ_STORE=str(tmp_path / "store"))
    # With stores, so that no broker that starts on this host meanwhile sweeps them. Those that are dead here have
    # successors, which only who looks from here can see.
    stores = [tmp_path / name for name in ("dead", "alive", "mapped")]
    for store in stores:
        (store / "commitlog").mkdir(parents=True)
    dead, alive, mapped = (Segments(f"{store.name}-{os.getpid()}", "posix", str(store)) for store in stores)
    write_instance(place.instance_path, _successor_of(dead.instance), mode=0o600, gid=-1)
    beside = place.runtime_dir.parent / "beside" / place.instance_path.name
    beside.parent.mkdir()
    write_instance(beside, _successor_of(mapped.instance), mode=0o600, gid=-1)
    viewer = _viewer_of(mapped)
    try:
        before = alive.names(), mapped.names()
        dead.kill()
        mapped.kill()
        named = f"shmq.{dead.instance.broker_name}.{dead.instance.generation:016x}"
        assert named in shell.run("doctor", "--fix", "--dry-run").err and len(dead.names()) == 4
        taken = sum((Path("/dev/shm") / name.lstrip("/")).stat().st_blocks * 512 for name in dead.names())
        document = shell.json("doctor", "doctor", "--fix", status=1)  # no broker runs on that store
        mapped_by = [entry["figures"]["pids"] for entry in document["findings"] if entry["check"] == "memory.mapped"]
        assert [viewer.pid] in mapped_by  # others on this host may have killed brokers just now
        [removal] = [entry for entry in document["removals"] if entry["generation"] == named]
        assert (len(removal["removed"]), removal["refused"], dead.names()) == (4, "", [])
        assert removal["bytes"] == taken and (alive.names(), mapped.names()) == before
    finally:
        viewer.kill()
        viewer.communicate()
        alive.kill()
        for store in stores:
            (store / "commitlog").rmdir()
        shell.run("doctor", "--fix")
    assert alive.names() == mapped.names() == []


def _successor_of(instance: Instance) -> Instance:
    generation = instance.generation ^ 2
    return instance._replace(generation=generation, segments=segment_names(instance.broker_name, generation))


def _viewer_of(segments: Segments) -> "subprocess.Popen[bytes]":
    """A process that has them mapped, and that no registry knows."""
    program = (
        "import sys; from shmq.shm.instance import Instance; from shmq.shm.segment import open_store; "
        "store = open_store(Instance.from_json(sys.argv[1]), writable=False); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, segments.instance.to_json()]
    viewer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert viewer.stdout and viewer.stdout.readline() == b"\n"
    return viewer


def test_a_broker_that_died_is_reported_with_the_command_that_brings_it_back() -> None:
    with Broker() as broker:
        broker.kill_daemon()
        document = Shell(broker.url).json("doctor", "doctor", "--fix", status=1)
        dead = [entry for entry in document["findings"] if entry["check"] == "broker.daemon"]
        assert dead and all("is dead" in entry["text"] and entry["verdict"] == "fail" for entry in dead)
        [waiting] = [entry for entry in document["findings"] if entry["text"].startswith("this broker ended without")]
        assert waiting["fix"] == f"shmq serve --name {broker.name}" and not document["served"]
        assert not [entry for entry in document["removals"] if broker.name in entry["generation"]]
        assert all((Path("/dev/shm") / str(name)[1:]).exists() for name in broker._instance().segments)  # type: ignore[union-attr]


def test_another_layout_and_a_wrong_mode_fail_with_both_numbers(broker: Broker, tmp_path: Path) -> None:
    instance = broker._instance()
    assert instance is not None
    place = Place(broker.name, tmp_path / broker.name)
    place.runtime_dir.mkdir()
    write_instance(place.instance_path, instance._replace(abi=instance.abi + 1, version="9.9.9"), mode=0o600, gid=-1)
    document = Shell(f"shmq://{place.runtime_dir}").json("doctor", "doctor", status=1)
    versions = finding(document, "installation.versions")
    assert versions["verdict"] == "fail" and versions["figures"]["abi"] == versions["figures"]["library_abi"] + 1
    path = Path("/dev/shm") / str(instance.segments[0])[1:]
    path.chmod(0o644)
    try:
        document = Shell(broker.url).json("doctor", "doctor", status=1)
    finally:
        path.chmod(instance.mode)
    segments = finding(document, "access.segments")
    assert (segments["verdict"], segments["figures"]["mode"]) == ("fail", 0o644) and "chmod" in segments["fix"]
