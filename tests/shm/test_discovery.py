"""A broker of any user is found by a program that looks for it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmq
from shmq.shm import discovery, place
from shmq.shm.discovery import find_place, others_text
from shmq.testing import Broker

ROOT = Path(__file__).parents[2]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for /run/shmq, while this user's own runtime directory is elsewhere and empty."""
    directory = tmp_path / "system"
    directory.mkdir()
    monkeypatch.delenv("SHMQ_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("SHMQ_URL", raising=False)
    monkeypatch.setattr(discovery, "SYSTEM_RUNTIME", directory)
    monkeypatch.setattr(discovery, "_OTHERS", (f"{directory}/*",))
    monkeypatch.setattr(place, "_runtime_root", lambda: tmp_path / "own")
    yield directory


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_a_name_is_looked_for_in_the_systems_directory_too(system: Path, broker: Broker) -> None:
    (system / "default").symlink_to(broker.place.runtime_dir)
    assert find_place().runtime_dir == system / "default"
    with shmq.connect() as mq:
        assert mq.send("orders", b"x").offset >= 0
        assert mq.broker_name == broker.place.broker_name


def test_what_is_left_of_a_dead_broker_does_not_hide_a_living_one(system: Path, broker: Broker, tmp_path: Path) -> None:
    (system / "default").symlink_to(broker.place.runtime_dir)
    own = tmp_path / "own/default"
    own.mkdir(parents=True)
    text = (broker.place.runtime_dir / "instance.json").read_text()
    supervisor = shmq.shm.instance.Instance.from_json(text).processes["supervisor"]
    dead = text.replace(str(supervisor.start), "1")
    (own / "instance.json").write_text(dead)
    assert find_place().runtime_dir == system / "default"
    (system / "default").unlink()
    assert find_place().runtime_dir == own


def test_a_runtime_directory_that_was_named_is_the_only_one(
    system: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (system / "default").symlink_to(broker.place.runtime_dir)
    monkeypatch.setenv("SHMQ_RUNTIME_DIR", str(tmp_path / "own"))
    assert find_place().runtime_dir == tmp_path / "own/default"


def test_a_program_that_finds_none_gets_those_that_run(system: Path, broker: Broker) -> None:
    (system / "other").symlink_to(broker.place.runtime_dir)
    assert others_text(find_place()) == f"; others do: shmq://{system}/other"
    with pytest.raises(shmq.BrokerNotRunning, match=f"shmq://{system}/other"):
        shmq.connect("shmq://missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_program_without_access_gets_the_owner_of_the_broker(system: Path, broker: Broker) -> None:
    theirs = system / broker.place.broker_name
    for folder in (theirs, system / "left"):  # nothing called `left` runs
        folder.mkdir(mode=0o700)
        (folder / "instance.json").touch()
    program = f"""
import os, shmq.shm.segment
from shmq.shm import discovery
from shmq.shm.place import Place
discovery._OTHERS = ({f"{system}/*"!r},)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(discovery.others_text(Place("default", discovery.Path("/none"))))
"""
    for folder in (*system.parents, system):
        if folder.stat().st_uid == 0 and folder.stat().st_mode & 0o077 == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == f"; others do: shmq://{theirs} of uid 0\n", done.stderr


def test_a_broker_is_called_as_it_calls_itself_whatever_path_leads_to_it(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "some-directory"
    path.symlink_to(broker.place.runtime_dir)
    assert find_place(f"shmq://{path}").broker_name == broker.place.broker_name
    with shmq.connect(f"shmq://{path}") as mq:
        assert mq.broker_name == broker.place.broker_name
        with pytest.raises(shmq.TopicNotFound, match=f'broker "{broker.place.broker_name}"'):
            mq.admin.delete_topic("missing")


OTHER_USER = """
import os, sys
import shmq
from shmq.client import connection  # before the rights go: the tests may lie where only their owner may read
import shmq.client.local_session, shmq.shm.discovery
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ.pop("SHMQ_RUNTIME_DIR", None)
try:
    shmq.connect()
except shmq.PermissionDenied as error:
    print(error.hint)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_broker_that_is_not_for_this_user_is_not_said_to_be_missing(tmp_path: Path) -> None:
    script = f"""
        mount -t tmpfs tmpfs /run && mkdir -p /run/shmq/default && chmod 700 /run/shmq/default &&
        echo '{{}}' > /run/shmq/default/instance.json && exec {sys.executable} -P -c "$0"
    """
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, OTHER_USER], capture_output=True, text=True, timeout=60, check=False
    )
    if "unshare" in result.stderr:
        pytest.skip("no rights to make namespaces here")
    assert "usermod -aG shmq" in result.stdout, result
