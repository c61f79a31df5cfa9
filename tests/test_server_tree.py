"""What the server tree never does: start programs, evaluate text, unpickle, or listen for a debugger.

RocketMQ's worst holes were remote settings that reached a shell (CVE-2023-33246) and deserialisers. The supervisor
starts the broker's own processes and nothing else; it is the one exception, by name.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tables.rows import every_row

ROOT = Path(__file__).resolve().parent.parent
TREES = ("daemon", "shmq/protocol", "shmq/store", "shmq/shm")
# Files that start our own processes, with a fixed command line of ours.
# rehearsal.py tries what a start needs in a fork that ends at once; it starts no program.
STARTERS = {"daemon/child.py", "daemon/supervisor.py", "daemon/rehearsal.py"}

MODULES = {"subprocess", "pickle", "marshal", "shelve", "yaml", "code", "pty", "pdb", "xmlrpc", "multiprocessing"}
CALLS = {"eval", "exec", "compile", "__import__"}
SYSTEM_CALLS = {"system", "popen", "execv", "execve", "execvp", "execvpe", "execl", "execlp", "fork", "forkpty"} | {
    f"spawn{letters}" for letters in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")
} | {"posix_spawn", "posix_spawnp", "startfile"}  # fmt: skip


def findings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in MODULES:
                yield node.module or ""
            if node.module in ("os", "posix"):
                yield from (f"os.{alias.name}" for alias in node.names if alias.name in SYSTEM_CALLS)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield node.func.id
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                name = f"{node.func.value.id}.{node.func.attr}"
                if node.func.value.id in ("os", "posix") and node.func.attr in SYSTEM_CALLS:
                    yield name
                if node.func.attr in ("create_subprocess_exec", "create_subprocess_shell", "subprocess_exec"):
                    yield name


def test_the_server_tree_starts_nothing_and_evaluates_nothing() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {what}"
        for tree in TREES
        for path in (ROOT / tree).rglob("*.py")
        if str(path.relative_to(ROOT)) not in STARTERS
        for what in findings(path.read_text())
    }
    assert not found


def test_the_exceptions_are_still_ones() -> None:
    for name in STARTERS:
        assert not (ROOT / name).exists() or set(findings((ROOT / name).read_text())) <= {"subprocess", "os.fork"}


@every_row(
    "source",
    [
        "import subprocess", "from subprocess import run", "import pickle as p", "from multiprocessing import Process",
        "import os\nos.system('x')", "from os import popen", "import os\nos.execv('x', [])", "eval('1')", "exec(b)",
        "__import__('x')", "asyncio.create_subprocess_shell('x')",
    ],
)  # fmt: skip
def test_the_search_finds_each_way(source: str) -> None:
    assert list(findings(source))


def test_the_search_lets_ordinary_code_pass() -> None:
    assert not list(findings("import os, re\nre.compile('x')\nos.getpid()\nx.system()\nself.exec_all()\n"))
