"""The socket file: never half-made, never stolen, never left behind."""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.bridge.sockets.unix_listener import Listener
from shmq.errors import PermissionDenied, StoreLocked
from shmq.shm.place import SOCKET_PATH_BYTES_MAX
from shmq.shm.replacing import writing_path


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        yield Path(directory) / "control.sock"


def listener(path: Path) -> Listener:
    return Listener(path, mode=0o660, gid=-1)


def test_the_socket_appears_listening_with_its_mode(path: Path) -> None:
    made = listener(path)
    status = path.lstat()
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o660
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.fspath(path))
    assert os.listdir(path.parent) == ["control.sock"]
    made.close()
    assert os.listdir(path.parent) == []


def test_a_living_bridge_is_not_replaced(path: Path) -> None:
    first = listener(path)
    with pytest.raises(StoreLocked, match="another bridge answers"):
        listener(path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.fspath(path))
    first.close()


def test_the_socket_of_a_dead_bridge_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
        dead.listen()
    assert path.exists()
    made = listener(path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.fspath(path))
    made.close()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_stays_where_it_is(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(PermissionDenied, match="no socket"):
        listener(path)
    assert os.listdir(path.parent) == ["control.sock"]


def test_closing_leaves_a_successors_socket_alone(path: Path) -> None:
    first = listener(path)
    path.unlink()
    second = listener(path)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_directory_that_is_missing_is_an_error_that_says_so(path: Path) -> None:
    with pytest.raises(PermissionDenied, match="cannot be made"):
        listener(path.parent / "missing" / "control.sock")


def test_what_a_killed_predecessor_left_beside_the_path_is_no_hindrance(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(os.fspath(writing_path(path.with_name("s"))))
    listener(path).close()
    assert os.listdir(path.parent) == []


def test_the_longest_path_a_socket_can_have_will_do() -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        room = SOCKET_PATH_BYTES_MAX - len(directory) - len("//control.sock")
        path = Path(directory) / ("d" * room) / "control.sock"
        path.parent.mkdir()
        assert len(os.fspath(path)) == SOCKET_PATH_BYTES_MAX
        made = listener(path)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(os.fspath(path))
        made.close()


def test_where_the_path_is_gone_it_listens_anew_and_says_once_what_hinders_it(path: Path) -> None:
    said: list[str] = []
    made, moved = listener(path), path.parent.with_name(f"{path.parent.name}-moved")
    assert made.look(said.append) is None
    for _ in range(2):
        path.unlink()
        path.parent.rename(moved)
        for _ in range(3):
            assert made.look(lambda event, **_: said.append(event)) is None
        moved.rename(path.parent)
        before = made.look(lambda event, **_: said.append(event))
        assert before is not None and before is not made.socket
        before.close()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(os.fspath(path))
    assert said == ["socket.not_made", "socket.made_again"] * 2
    path.unlink()
    path.write_text("of another program")
    assert made.look(said.append) is None
    made.close()
    assert path.read_text() == "of another program"
