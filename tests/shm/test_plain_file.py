"""Files are opened by their names, and nothing else that has such a name; no opening waits."""

import ast
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.client.consumers.kept_offsets import open_kept_offsets
from shmq.daemon.nameserver.kv_file import KeyValueFile
from shmq.errors import CorruptionError, SegmentError, UsageError
from shmq.plain_file import NoPlainFile, open_plain, read_plain, read_whole, write_whole
from shmq.protocol.roster import read_roster
from shmq.shm.access import Access
from shmq.shm.addresses import read_addresses
from shmq.shm.instance import read_instance
from shmq.shm.links import read_links
from shmq.tools.broker.contexts import load_contexts
from tests.tables.rows import every_row

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("shmq", "benchmarks/measurement", "bindings", "daemon", "tools", "spark")
# Directories, what is made anew, what the kernel shows, and descriptors that are open already.
NO_NAMES_OF_FILES = (
    "O_DIRECTORY",
    "O_EXCL",
    "O_TMPFILE",
    "/proc/",
    "MOUNTS",
    "_PROC",
    "os.devnull",
    "_TABLE",
    "cgroup",
)
DESCRIPTORS = ("reading", "number", "descriptor")
ON_PURPOSE = {
    "benchmarks/measurement/saved_bench.py": "`shmq bench --against FILE`",
    "bindings/config.py": "the header that lies beside it",
    "bindings/sources.py": "sources, where the core is compiled",
    "shmq/figures/limits.py": "files of a cgroup",
    "shmq/testing.py": "in a directory that it has just made",
    "tools/completion_command.py": "a file of the user's shell, which may be a link",
    "tools/doctor/host.py": "what the kernel and root have put into /proc, /sys and /etc",
    "tools/messages/produce_command.py": "`shmq produce TOPIC --file FILE`",
    "tools/release/__main__.py": "a checkout",
    "tools/release/archives.py": "a checkout",
    "tools/service/broker_config.py": "`shmq serve --config <(…)`",
    "tools/service/serve_command.py": "`shmq serve --log-file FILE`",
    "tools/store/export_command.py": "`shmq store export --output FILE`",
    "tools/store/resend_command.py": "`shmq store resend <(…)`",
    "spark/jobs/commands/job.py": "`--report FILE`",
}


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


def offsets_kept(_: Path) -> object:
    kept = open_kept_offsets("shmq://here", "billing", "orders")
    return kept and kept.get("0@0")


# What a name in a directory of the broker or a user is read with, and what it makes of something else there.
READERS: dict[str, tuple[Callable[[Path], object], object]] = {
    "instance.json": (read_instance, SegmentError),
    "links.json": (read_links, None),
    "tcp.json": (read_addresses, {}),
    "roster.json": (lambda path: read_roster(path, "0"), NoPlainFile),
    "kvConfig.json": (lambda path: KeyValueFile(path, Access(-1)).load(), CorruptionError),
    "contexts.json": (lambda _: load_contexts(), UsageError),
    "2a22a327cd83073a/billing/orders.0.json": (offsets_kept, None),
    "2a22a327cd83073a/billing/orders.0.lock": (offsets_kept, None),
}


def test_readers_of_files_that_others_can_replace_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @every_row(("name", "kind"), [(name, kind) for name in READERS for kind in ("a FIFO", "a directory", "a socket")])
    def each(name: str, kind: str) -> None:
        place = tmp_path / kind.replace("a ", "") / name.replace("/", "-")
        for variable in ("SHMQ_CONFIG_DIR", "SHMQ_OFFSETS_DIR"):
            monkeypatch.setenv(variable, str(place))
        (place / name).parent.mkdir(parents=True)
        monkeypatch.chdir((place / name).parent)
        KINDS[kind](Path((place / name).name))
        read, outcome = READERS[name]
        if isinstance(outcome, type):
            with pytest.raises(outcome, match=f"it is {kind} and no plain file"):
                read(place / name)
        else:
            assert read(place / name) == outcome

    each()


def waiting_opens(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each call that waits where a FIFO has the name of a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and opens_by_name(node):
            call = ast.unparse(node)
            if not call.startswith("open(open_plain(") and not any(word in call for word in NO_NAMES_OF_FILES):
                yield node.lineno, call


def opens_by_name(node: ast.Call) -> bool:
    name, given = ast.unparse(node.func), [ast.unparse(each) for each in node.args]
    if name.endswith(".open") and name != "os.open":
        return bool(given) and given[0].strip("'") in ("r", "w", "a", "rb", "wb", "ab", "r+b")
    reads_whole = name.endswith((".read_bytes", ".read_text", ".write_bytes", ".write_text"))
    return reads_whole or (name in ("open", "os.open") and given[0] not in DESCRIPTORS)


def test_what_opens_files_does_not_wait() -> None:
    paths = sorted({path.resolve() for root in PRODUCT for path in (ROOT / root).rglob("*.py")})
    found = [
        (str(path.relative_to(ROOT)), f"{line}: {call}")
        for path in paths
        if path.name != "plain_file.py"
        for line, call in waiting_opens(path.read_text())
    ]
    assert len(paths) > 600
    assert not [(path, what) for path, what in found if path not in ON_PURPOSE], found
    assert ON_PURPOSE.keys() == {path for path, _ in found}, "one opens no file by its name any more"


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
        ("draft.open('wb')", True),
        ("path.write_text(text)", True),
        ("with open(reading, 'rb') as pipe: pass", False),
    ],
)
def test_an_opening_that_waits_is_recognised(text: str, waits: bool) -> None:
    assert bool(list(waiting_opens(text))) is waits


def test_all_bytes_of_a_place_are_read_and_written_or_it_is_an_error(tmp_path: Path) -> None:
    descriptor = open_plain(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    content = bytes(range(250)) * 80
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        with pytest.raises(OSError, match="too large"):
            write_whole(descriptor, content, 0)  # the system takes 10,000, and says so
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    write_whole(descriptor, memoryview(content), 100)
    assert read_whole(descriptor, len(content), 100) == content
    assert read_whole(descriptor, 500, len(content)) == content[-100:], "what there is in front of the end"
    os.close(descriptor)


PIPES = ("daemon/announcement.py", "daemon/child.py", "daemon/rehearsal.py", "daemon/tether.py")  # a few bytes each


def test_what_writes_into_a_file_looks_how_much_was_taken() -> None:
    paths = {path.resolve() for root in PRODUCT for path in (ROOT / root).rglob("*.py")}
    found = {
        str(path.relative_to(ROOT))
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith(("os.write(", "os.pwrite("))
    }
    assert found == set(PIPES)
