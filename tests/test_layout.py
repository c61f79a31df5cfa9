"""The tree is the architecture: packages, import directions and sizes are what setup.cfg and ARCHITECTURE.md say."""

import ast
import configparser
import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.tables.rows import every_row

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {
    "shmq": "shmq",
    "bindings": "shmq.bindings",
    "daemon": "shmq.daemon",
    "tools": "shmq.tools",
    "benchmarks/measurement": "shmq.measurement",
    "spark": "shmq.spark",
    "pyspark_shmq": "pyspark_shmq",  # the name Spark looks for
}

# Who may import whom; a layer may always import itself. Read it bottom-up.
ALLOWED: dict[str, set[str]] = {
    "shmq.version": set(),
    "shmq.errors": set(),
    "shmq.exit_code": set(),
    "shmq.functions": {"shmq.errors"},
    "shmq.plain_file": set(),
    "shmq.waits": {"shmq.errors"},
    "shmq.bindings": {"shmq.plain_file"},
    "shmq.message": {"shmq.errors"},
    "shmq.properties": {"shmq.errors", "shmq.message"},
    "shmq.words": {"shmq.errors", "shmq.properties"},
    "shmq.delay_levels": {"shmq.errors"},
    "shmq.progress": set(),
    "shmq.timing": {"shmq.errors"},
    "shmq.shm": {"shmq.errors", "shmq.bindings", "shmq.version", "shmq.plain_file", "shmq.waits"},
    "shmq.record": {"shmq.errors", "shmq.message", "shmq.shm"},
    "shmq.typed_json": set(),
    "shmq.addresses": {"shmq.errors"},
    "shmq.protocol": {"shmq.errors", "shmq.message", "shmq.properties", "shmq.typed_json", "shmq.plain_file"},
    "shmq.filter": {"shmq.errors", "shmq.shm"},
    "shmq.columns": {"shmq.errors", "shmq.message", "shmq.shm"},
    "shmq.store": {
        "shmq.errors",
        "shmq.message",
        "shmq.delay_levels",
        "shmq.timing",
        "shmq.record",
        "shmq.protocol",
        "shmq.shm",
        "shmq.words",
        "shmq.plain_file",
        "shmq.properties",
    },
    "shmq.options": {
        "shmq.addresses",
        "shmq.delay_levels",
        "shmq.errors",
        "shmq.shm",
        "shmq.store",
        "shmq.timing",
    },
    "shmq.figures": {
        "shmq.errors",
        "shmq.message",
        "shmq.progress",
        "shmq.protocol",
        "shmq.shm",
        "shmq.store",
        "shmq.plain_file",
    },
    "shmq.metrics": {
        "shmq.errors",
        "shmq.figures",
        "shmq.message",
        "shmq.plain_file",
        "shmq.progress",
        "shmq.protocol",
        "shmq.shm",
    },
    "shmq.client": {
        "shmq.addresses",
        "shmq.columns",
        "shmq.errors",
        "shmq.figures",
        "shmq.filter",
        "shmq.functions",
        "shmq.message",
        "shmq.delay_levels",
        "shmq.timing",
        "shmq.record",
        "shmq.progress",
        "shmq.protocol",
        "shmq.shm",
        "shmq.version",
        "shmq.typed_json",
        "shmq.words",
        "shmq.plain_file",
        "shmq.waits",
        "shmq.properties",
    },
    "shmq.compat": {"shmq", "shmq.errors", "shmq.functions", "shmq.words"},
    "shmq.contrib": {"shmq", "shmq.errors", "shmq.message", "shmq.version", "shmq.words"},
    "shmq": {
        "shmq.errors",
        "shmq.figures",
        "shmq.functions",
        "shmq.message",
        "shmq.client",
        "shmq.shm",
        "shmq.version",
        "shmq.waits",
    },
    "shmq.daemon.logic": {"shmq.addresses", "shmq.errors", "shmq.message", "shmq.protocol"},
    "shmq.daemon": {
        "shmq.addresses",
        "shmq.errors",
        "shmq.exit_code",
        "shmq.figures",
        "shmq.filter",
        "shmq.message",
        "shmq.delay_levels",
        "shmq.timing",
        "shmq.record",
        "shmq.progress",
        "shmq.protocol",
        "shmq.metrics",
        "shmq.options",
        "shmq.shm",
        "shmq.store",
        "shmq.version",
        "shmq.typed_json",
        "shmq.words",
        "shmq.daemon.logic",
        "shmq.plain_file",
        "shmq.properties",
    },
    "shmq.measurement": {"shmq", "shmq.errors", "shmq.figures", "shmq.store", "shmq.version"},
    "shmq.tools": {
        "shmq",
        "shmq.addresses",
        "shmq.errors",
        "shmq.exit_code",
        "shmq.figures",
        "shmq.filter",
        "shmq.measurement",
        "shmq.message",
        "shmq.metrics",
        "shmq.options",
        "shmq.progress",
        "shmq.protocol",
        "shmq.record",
        "shmq.store",
        "shmq.shm",
        "shmq.version",
        "shmq.client",
        "shmq.words",
        "shmq.plain_file",
        "shmq.properties",
    },
    "shmq.spark": {
        "shmq",
        "shmq.columns",
        "shmq.errors",
        "shmq.figures",
        "shmq.message",
        "shmq.progress",
        "shmq.shm",
        "shmq.protocol",
        "shmq.client",
        "shmq.plain_file",
        "shmq.typed_json",
        "shmq.properties",
    },
    "shmq.spark.jobs": {
        "shmq",
        "shmq.errors",
        "shmq.exit_code",
        "shmq.figures",
        "shmq.message",
        "shmq.protocol",
        "shmq.shm",
        "shmq.spark",
        "shmq.tools",
        "shmq.words",
        "shmq.plain_file",
        "shmq.properties",
    },
    "pyspark_shmq": {"shmq.spark"},
}
# Folders inside a layer: what each may import of the others. The modules beside them compose them.
FOLDERS: dict[str, dict[str, set[str]]] = {
    "shmq.client": {
        "wire_shm": set(),  # the wires carry bytes and know no feature
        "wire_tcp": set(),
        "redelivery": set(),
        "transactions": set(),
        "pop": {"redelivery"},
        "observers": {"transactions"},
        "producers": {"wire_shm", "transactions", "observers"},
        "requests": set(),
        "consumers": {"redelivery", "observers"},
        "remote": {"wire_tcp"},
        "following": {"remote", "wire_shm"},
        "administration": {"wire_shm", "wire_tcp"},
    },
    "shmq.daemon": {
        "logic": set(),
        "broker": {"logic"},
        "keeper": set(),
        "bridge": {"logic", "broker"},
        "ha": {"broker", "bridge"},
        "nameserver": {"logic", "broker", "bridge", "ha"},
    },
}
# The same of the native code: what a file of a folder may include of the others, beside shmq.h. The sources beside the
# folders of the face compose them; its one header there, and the two of the core, stand below all folders.
NATIVE_FOLDERS: dict[str, set[str]] = {
    "core/record": {"core"},
    "core/files": {"core", "core/record"},
    "core/filter": set(),
    "core/read": {"core", "core/files", "core/filter"},
    "core/log": {"core", "core/files", "core/record", "core/read"},
    "core/segments": {"core/log"},
    "core/columns": {"core/read"},
    "core/wire": {"core"},
    "face/store": {"core", "face", "core/columns", "core/files", "core/log", "core/read"},
    "face/send": {"face/store", "core/read", "core/wire"},
    "face/read": {"face/store", "core/read", "core/wire"},
}
# `shmq` on the right of the table grants the public API, which is these.
PUBLIC = {"shmq", "shmq.aio", "shmq.testing", "shmq.errors", "shmq.message", "shmq.version"}

# About 400 lines are where to ask whether a file is one thing; this is where the answer is no.
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 50
FOLDER_FILES_MAX = 25
SMALL_MODULE_LINES = 25
SMALL_MODULES_SHARE = 0.05


def python_files() -> Iterator[tuple[Path, str]]:
    """Yield (path, module name) of every module that is installed."""
    for folder, package in ROOTS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            yield path, ".".join((package, *parts))


def layer_of(module: str) -> str:
    """The row of ALLOWED a module belongs to: its longest listed prefix."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in ALLOWED and (name != "shmq" or length == len(parts)):
            return name
    return "shmq"


@functools.cache
def module_names() -> frozenset[str]:
    """Every module that is installed."""
    return frozenset(module for _, module in python_files())


class Source(NamedTuple):
    """What the rules ask of a module; to parse all of them takes seconds, so it is done once for every rule."""

    path: Path
    module: str
    is_described: bool
    imports: list[tuple[int, str]]
    """Line and absolute module."""
    functions: list[tuple[str, int]]
    """Name and lines without the docstring."""
    positional_reads: list[int]
    """Lines where a row of the core's tables is read by position."""


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every module that is installed."""
    found = []
    for path, module in python_files():
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        described = bool(ast.get_docstring(tree))
        read = list(positional_reads_in(nodes))
        found.append(Source(path, module, described, list(imports_in(nodes)), list(functions_in(nodes)), read))
    return tuple(found)


def positional_reads_in(nodes: Iterable[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Subscript) and _is_call(node.value, "queue"):
            yield node.lineno
        target: ast.expr | None = None
        if isinstance(node, ast.Assign) and _is_call(node.value, "queue"):
            target = node.targets[0]
        elif isinstance(node, ast.For | ast.comprehension) and _is_call(node.iter, "offsets", "clients", "assigned"):
            target = node.target
        if isinstance(target, ast.Tuple):
            yield target.lineno


def _is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def functions_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            yield node.name, (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def imports_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import of ours, those in functions included."""
    modules = module_names()
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "shmq")
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, f"{'.' * node.level}{node.module or ''}"
            elif node.module and node.module.split(".")[0] == "shmq":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield node.lineno, full if full in modules or full == "shmq.bindings._core" else node.module


def granted(source: str, target: str) -> bool:
    if target.startswith("."):  # a relative import says less than it could
        return False
    layer, wanted = layer_of(source), layer_of(target)
    if layer == wanted or wanted in ALLOWED[layer]:
        return wanted != "shmq" or layer == "shmq" or target in PUBLIC
    return "shmq" in ALLOWED[layer] and target in PUBLIC


def codes_issued_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each request code of a module, but for those that it compares, looks up or serves."""
    asked: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked += [node.left, *node.comparators]
        elif isinstance(node, ast.Set):
            asked += node.elts
        elif isinstance(node, ast.Dict):
            asked += node.keys
        elif _is_call(node, "serve") and isinstance(node, ast.Call):
            asked.append(node.args[0])
    asked += [each for row in asked if isinstance(row, ast.Tuple) for each in row.elts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Request" and node not in asked:
            yield node.lineno, node.attr


def test_each_request_of_a_client_is_made_in_one_place() -> None:
    """Whichever wire carries it: a field that a broker needs is then added once."""
    made: dict[str, list[str]] = {}
    for path, module in python_files():
        if not module.startswith(("shmq.daemon", "shmq.protocol")) and "Request." in (text := path.read_text()):
            for line, code in codes_issued_in(ast.parse(text)):
                made.setdefault(code, []).append(f"{path.relative_to(ROOT)}:{line}")
    assert len(made) > 40
    twice = [f"{code}: {' '.join(places)}" for code, places in sorted(made.items()) if len(places) > 1]
    assert not twice, "\n".join(twice)


@every_row(
    ("text", "codes"),
    [
        ("wire.request(Question(broker, Request.PULL_MESSAGE, ext))", ["PULL_MESSAGE"]),
        ("code = Request.SEND_MESSAGE if one else Request.SEND_BATCH_MESSAGE", ["SEND_MESSAGE", "SEND_BATCH_MESSAGE"]),
        ("if code in (Request.HEART_BEAT, Request.ATTACH) or code == Request.STATUS: pass", []),
        ("made = ask(Request.STATUS).code == 0", ["STATUS"]),
        ("AT_LEADER = frozenset({Request.POP_MESSAGE})", []),
        ("handlers = {Request.ATTACH: lambda: ask(Request.STATUS)}", ["STATUS"]),
        ("wire.serve(Request.ATTACH, lambda: ask(Request.STATUS))", ["STATUS"]),
    ],
)
def test_a_request_is_found_where_it_is_made(text: str, codes: list[str]) -> None:
    assert [code for _, code in codes_issued_in(ast.parse(text))] == codes


def test_every_import_is_granted_by_the_table() -> None:
    wrong = [
        f"{source.path.relative_to(ROOT)}:{line}: {source.module} may not import {target}"
        for source in sources()
        for line, target in source.imports
        if not granted(source.module, target)
    ]
    assert not wrong, "\n".join(wrong)


def folder_in(layer: str, module: str) -> str:
    """Return the folder of a layer that a module is in; "" of another layer, and of what stands beside the folders."""
    name = module.removeprefix(f"{layer}.").split(".")[0] if module.startswith(f"{layer}.") else ""
    return name if name in FOLDERS[layer] else ""


def test_folders_of_a_layer_stand_on_each_other_as_their_table_says() -> None:
    wrong = []
    for layer, folders in FOLDERS.items():
        for source in sources():
            folder = folder_in(layer, source.module)
            for line, target in source.imports if folder else ():
                other = folder_in(layer, target)
                if other and other != folder and other not in folders[folder]:
                    wrong.append(f"{source.path.relative_to(ROOT)}:{line}: {folder} may not import {target}")
        assert {path.parent.name for path in (ROOT / layer.replace(".", "/")).glob("*/__init__.py")} == folders.keys()
    assert not wrong, "\n".join(wrong)


@every_row(
    ("source", "target", "allowed"),
    [
        ("shmq.daemon.keeper", "shmq.store.recovery", True),
        ("shmq.protocol.frame", "shmq.store.recovery", False),
        ("shmq.client.producers.producer", "shmq.bindings._core", False),
        ("shmq.store.recovery", "shmq.daemon.keeper", False),
        ("shmq.tools.cli", "shmq.daemon.supervisor", False),
        ("shmq.spark.source", "shmq.store.recovery", False),
        ("shmq.tools.cli", "shmq", True),
        ("shmq.testing", ".errors", False),
    ],
)
def test_the_table_itself_refuses_what_it_should(source: str, target: str, allowed: bool) -> None:
    assert granted(source, target) is allowed


def test_the_package_list_equals_the_tree() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {module for path, module in python_files() if path.name == "__init__.py"}
    assert listed == found


def test_no_file_outgrows_one_concept() -> None:
    sources = [path for folder in ROOTS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".c", ".h"}]
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources
        if (count := len(path.read_text().splitlines())) > FILE_LINES_MAX and path.name != "shmq.h"
    }
    assert not long, f"files above {FILE_LINES_MAX} lines: {long}"


# What the CPython face itself writes to shared memory: beats and counts of its own client slot, and the keeper's beat.
FACE_WRITES = {
    "read/py_poll.c": ["beat_ns", "received"],
    "read/py_settle.c": ["settled"],
    "send/py_send.c": ["sent", "beat_ns"],
    "store/py_flush.c": ["keeper_beat_ns"],
}
ATOMIC_WRITE = re.compile(
    r"(?:atomic_(?:store|exchange|compare_exchange|fetch|flag|init)|__sync_|__atomic_(?!load))\w*\s*\(\s*[^,;]*?(\w+)\s*,"
)


def test_the_face_of_the_core_writes_no_shared_word_but_beats() -> None:
    face = ROOT / "bindings" / "face"
    written = {
        str(path.relative_to(face)): words
        for path in sorted(face.rglob("*.[ch]"))
        if (words := ATOMIC_WRITE.findall(path.read_text()))
    }
    assert written == FACE_WRITES, "an algorithm on shared memory belongs to bindings/core"


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{source.module}.{name}: {lines}"
        for source in sources()
        for name, lines in source.functions
        if lines > FUNCTION_LINES_MAX
    ]
    assert not long, long


def test_every_module_says_what_it_owns() -> None:
    silent = [source.module for source in sources() if not source.is_described]
    assert not silent, silent


def draws(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and name of what uses the state that `random` and its like share with the whole process."""
    if "random" not in text:
        return
    makers = {"Random", "SystemRandom", "default_rng", "Generator"}  # these have a state of their own
    tree, shared = ast.parse(text), {"numpy.random", "np.random"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            shared |= {each.asname or each.name for each in node.names if each.name in ("random", "numpy.random")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            yield from ((node.lineno, each.name) for each in node.names if each.name not in makers)
        if isinstance(node, ast.Attribute) and node.attr not in makers and ast.unparse(node.value) in shared:
            yield node.lineno, ast.unparse(node)


def test_nothing_draws_from_the_state_of_random_which_is_the_programs() -> None:
    """Two programs that seed it alike would make equal ids, and a program's own sequence would change by our draws."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path, _ in python_files()
        for number, name in draws(path.read_text())
    ]
    calls = re.compile(
        r"\b(?:s?rand|s?random|rand_r|[dels]rand48|[jmn]rand48|seed48|lcong48|initstate|setstate)(?:_r)?\s*\("
    )
    for path in (each for each in (ROOT / "bindings").rglob("*") if each.suffix in (".c", ".h")):
        found += [f"{path.relative_to(ROOT)}: {call[0]}" for call in calls.finditer(path.read_text())]
    assert not found, "\n".join(found)


@every_row(
    ("text", "count"),
    [
        ("import random\nrandom.shuffle(names)", 1),
        ("import random as chance\nchance.seed(7)", 1),
        ("from random import Random, choice", 1),
        ("import numpy as np\nnp.random.seed(7)", 1),
        ("import random\npick = random.choice", 1),
        ("import random\nrandom.Random().random(); random.SystemRandom()", 0),
        ("self.random.choice(names)", 0),
    ],
)
def test_a_draw_is_found_however_it_is_written(text: str, count: int) -> None:
    assert len(list(draws(text))) == count


def test_the_root_folders_are_found_in_the_package_through_links() -> None:
    links = {path.name: os.readlink(path) for path in (ROOT / "shmq").iterdir() if path.is_symlink()}
    assert links == {Path(folder).name: f"../{folder}" for folder in ROOTS.keys() - {"shmq", "pyspark_shmq"}}


def import_graph() -> dict[str, set[str]]:
    """Every module with the modules it imports, at run time or for types alike."""
    modules = module_names()
    return {
        source.module: {target for _, target in source.imports if target in modules and target != source.module}
        for source in sources()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other: Tarjan's strongly connected components of more than one."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            position = stack.index(module)
            component = stack[position:]
            del stack[position:]
            if len(component) > 1:
                found.append(sorted(component))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circles(import_graph())
    assert not found, "\n".join(" ".join(component) for component in found)


COMMENT_OR_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\\\.|[^\"\\\\\n])*\"|'(?:\\\\.|[^'\\\\\n])*'", re.S)
INCLUDED = re.compile(r'^#include "([\w/]+)/\w+\.h"', re.M)
DEFINED = re.compile(
    r"^(?!static\b|extern\b|typedef\b)[A-Za-z_][\w \*]*?\b(\w+)\s*(?:\([^;{}]*\)\s*\{|(?:\[\w*\])?\s*=)", re.M
)


def native_sources() -> dict[str, str]:
    """Every file of the native code by its place below bindings/."""
    bindings = ROOT / "bindings"
    return {str(path.relative_to(bindings)): path.read_text() for path in sorted(bindings.rglob("*.[ch]"))}


def use_graph(texts: dict[str, str]) -> dict[str, set[str]]:
    """Every source in C with the sources that define what it uses; what no header declares is a file's own."""
    plain = {name: COMMENT_OR_TEXT.sub(" ", text) for name, text in texts.items()}
    words = {name: set(re.findall(r"\b[A-Za-z_]\w*", text)) for name, text in plain.items()}
    declared = set().union(*(words[name] for name in plain if name.endswith(".h")))
    sources = [name for name in plain if name.endswith(".c")]
    owner = {match[1]: name for name in sources for match in DEFINED.finditer(plain[name]) if match[1] in declared}
    return {name: {owner[word] for word in words[name] & owner.keys()} - {name} for name in sources}


def test_folders_of_the_native_code_include_what_their_table_says() -> None:
    wrong = []
    for name, text in native_sources().items():
        folder = name.rpartition("/")[0]
        for included in INCLUDED.findall(text):
            composes = folder == "face" and name.endswith(".c")
            if included != folder and not composes and included not in NATIVE_FOLDERS.get(folder, ()):
                wrong.append(f"bindings/{name}: {folder} may not include {included}")
    assert not wrong, "\n".join(wrong)
    assert {name.rpartition("/")[0] for name in native_sources()} - {"", "core", "face"} == NATIVE_FOLDERS.keys()
    assert not circles({folder: included & NATIVE_FOLDERS.keys() for folder, included in NATIVE_FOLDERS.items()})


def test_no_sources_in_c_use_each_other_in_a_circle() -> None:
    found = circles(use_graph(native_sources()))
    assert not found, "\n".join(" ".join(component) for component in found)


def test_a_circle_in_c_would_be_seen() -> None:
    texts = {
        "a.h": "int low(int); extern const int high;",
        "a.c": 'int low(int n) { return n + high; } /* "high" */',
        "b.c": "const int high = 1;\nstatic int own(void) { return low(high); }",
        "c.c": 'int own(void) { return 0; } /* low() */ const char *text = "high";',
    }
    assert use_graph(texts) == {"a.c": {"b.c"}, "b.c": {"a.c"}, "c.c": set()}
    assert circles(use_graph(texts)) == [["a.c", "b.c"]]


def test_a_circle_would_be_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_a_folder_shows_its_subject() -> None:
    """More source files than these in one folder need rooms by capability."""
    folders = Counter(
        path.parent
        for root in (*ROOTS, "tests", "benchmarks", "examples")
        for path in (ROOT / root).rglob("*")
        if path.suffix in {".py", ".c", ".h"} and path.name != "__init__.py"
    )
    full = {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > FOLDER_FILES_MAX}
    assert not full, full


def test_small_modules_are_rare() -> None:
    sizes = [len(path.read_text().splitlines()) for path, _ in python_files() if path.name != "__init__.py"]
    small = sum(size < SMALL_MODULE_LINES for size in sizes)
    assert small <= SMALL_MODULES_SHARE * len(sizes), f"{small} of {len(sizes)} modules are shorter than 25 lines"


def test_the_index_of_the_docs_lists_every_page() -> None:
    docs = ROOT / "docs"
    linked = {
        (index.parent / name).resolve()
        for index in docs.rglob("README.md")
        for name in re.findall(r"\]\(([\w./-]+\.md)\)", index.read_text())
    }
    pages = {page.resolve() for page in docs.rglob("*.md")} - {docs / "README.md", docs / "index.md"}
    wrong = [f"not linked: {page}" for page in pages - linked]
    wrong += [f"missing: {page}" for page in linked - pages if not page.exists()]
    assert not wrong, "\n".join(sorted(wrong))


def test_the_architecture_page_is_short_and_names_files_that_exist() -> None:
    page = ROOT / "ARCHITECTURE.md"
    text = page.read_text()
    named = re.findall(r"`((?:bindings|shmq|daemon|tools|spark|tests|benchmarks)/[\w/.]*)`", text)
    wrong = [f"no such file: {name}" for name in sorted(set(named)) if not (ROOT / name).exists()]
    wrong += [f"only {len(named)} files are named"] * (len(named) <= 30)
    wrong += [f"{len(text.encode())} bytes are too many"] * (len(text.encode()) > 16 << 10)
    assert not wrong, "\n".join(wrong)


def named_in(page: str) -> tuple[set[str], set[tuple[str, str]], set[str]]:
    """Return the files and folders that a page names, the functions it names behind a file, and other names of code."""
    paths = set(re.findall(r"(?<![\w/.])((?:[\w-]+/)*[\w-]+\.(?:py|c|h|md))\b", page)) | set(
        re.findall(r"(?<![\w/.%])((?:\w+/)+)(?=[`\s])", page)
    )
    functions = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|c|h))`(?: |, )`(\w+)`", page))
    names = set(re.findall(r"`([A-Z][a-z]\w*|[a-z]\w*_\w+|\w+\(\))`", page))
    return paths, functions, {name.removesuffix("()") for name in names}


def test_what_the_architecture_page_names_is_in_the_tree() -> None:
    paths, functions, names = named_in((ROOT / "ARCHITECTURE.md").read_text())
    assert len(paths) > 80 and len(functions) > 5 and len(names) > 5
    roots = [ROOT / root for root in (*ROOTS, "tests", "benchmarks")]
    files = [path for root in roots for path in root.rglob("*") if "__pycache__" not in path.parts]
    places = {f"/{path.relative_to(ROOT)}{'/' * path.is_dir()}": path for path in (*roots, *files, *ROOT.glob("*.md"))}
    code = {
        path: path.read_text() for path in files if path.suffix in (".py", ".c", ".h") and "tests" not in path.parts
    }

    def found(name: str) -> list[Path]:
        return [path for place, path in places.items() if place.endswith(f"/{name}")]

    def is_made(name: str) -> bool:  # a folder of the store
        return name.endswith("/") and any(f'"{name[:-1]}"' in text for text in code.values())

    wrong = [f"no such file or folder: {name}" for name in sorted(paths) if not found(name) and not is_made(name)]
    wrong += [
        f"{name} has no function {function}"
        for name, function in sorted(functions)
        if not any(
            re.search(rf"{'def _?' if name.endswith('.py') else chr(92) + 'b'}{function}\(", code[path])
            for path in found(name)
        )
    ]
    wrong += [
        f"no code says {name}"
        for name in sorted(names)
        if not any(re.search(rf"\b{name}\b", text) for text in code.values())
    ]
    assert not wrong, "\n".join(wrong)


def test_what_a_page_names_is_found_in_its_text() -> None:
    page = "| `a/b/` | `c.py` `f`; d/e.h, see `Wire`, `offset_max`, `send()` `word` /proc/ 1.c\n  g.py, h/   text"
    paths, functions, names = named_in(page)
    assert paths == {"a/b/", "c.py", "d/e.h", "g.py", "h/", "1.c"}
    assert functions == {("c.py", "f")} and names == {"Wire", "offset_max", "send"}


def test_rows_of_the_cores_tables_are_read_by_name() -> None:
    """A field that is added to a queue, an offset slot or a client changes no reader of the others."""
    found = [f"{source.path.relative_to(ROOT)}:{line}" for source in sources() for line in source.positional_reads]
    assert found == []
