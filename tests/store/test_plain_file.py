"""Files of a store are opened by their names, and nothing else that has such a name; no opening waits."""

import ast
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.store.plain_file import NoPlainFile, open_plain, read_plain
from tests.tables.rows import every_row

ROOT = Path(__file__).resolve().parents[2]
OF_STORES = ("shmq/store", "shmq/figures/residency.py", "daemon/keeper", "daemon/ha/log_file.py")
OF_NO_STORE = ("O_DIRECTORY", "O_EXCL", "/proc/", "MOUNTS")


def put_a_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"of another owner")
    path.symlink_to(target)


def put_a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a symbolic link": put_a_link,
    "a socket": put_a_socket,
}


def test_what_is_no_plain_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    @every_row(("kind", "flags"), [(kind, flags) for kind in KINDS for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)])
    def each(kind: str, flags: int) -> None:
        path = tmp_path / f"{kind}.{flags}"
        path.parent.mkdir(exist_ok=True)
        KINDS[kind](path)
        for extra in (0, os.O_CREAT):
            with pytest.raises(NoPlainFile, match=f"it is {kind} and no plain file"):
                open_plain(path, flags | extra)
        path.with_name("target").unlink(missing_ok=True)

    each()


def test_a_plain_file_is_read_whole_and_made_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        open_plain(path, os.O_RDWR)
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, 0o640)
    os.write(descriptor, b"content" * 100_000)
    assert os.fstat(descriptor).st_mode & 0o777 == 0o640 and not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert read_plain(path) == b"content" * 100_000


def test_a_link_is_followed_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    put_a_link(path)
    descriptor = open_plain(path, os.O_RDONLY, follows_links=True)
    assert os.read(descriptor, 100) == b"of another owner"
    os.close(descriptor)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to the fifo").symlink_to(tmp_path / "fifo")
    with pytest.raises(NoPlainFile):
        open_plain(tmp_path / "to the fifo", os.O_RDONLY, follows_links=True)


def waiting_opens(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each call that waits where a FIFO has the name of a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name, call = ast.unparse(node.func), ast.unparse(node)
            opens = name in ("open", "os.open") or name.endswith((".read_bytes", ".read_text"))
            if opens and not call.startswith("open(open_plain(") and not any(word in call for word in OF_NO_STORE):
                yield node.lineno, call


def test_what_opens_files_of_a_store_does_not_wait() -> None:
    roots = [ROOT / name for name in OF_STORES]
    paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {call}"
        for path in paths
        if path.name != "plain_file.py"
        for line, call in waiting_opens(path.read_text())
    ]
    assert len(paths) > 60 and not found, "\n".join(found)


@every_row(
    ("text", "waits"),
    [
        ("os.open(path, os.O_RDONLY | os.O_CLOEXEC)", True),
        ("path.with_name(name).read_bytes()", True),
        ("with open(path) as file: pass", True),
        ("os.open(path, os.O_RDONLY | os.O_DIRECTORY)", False),
        ("Path('/proc/locks').read_text()", False),
        ("open_plain(path, os.O_RDONLY)", False),
        ("self._files.open(name)", False),
    ],
)
def test_an_opening_that_waits_is_recognised(text: str, waits: bool) -> None:
    assert bool(list(waiting_opens(text))) is waits
