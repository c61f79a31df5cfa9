"""What `import shmq` offers and costs."""

import doctest
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import shmq
import shmq.aio
from shmq import errors
from shmq.shm import core
from tests.tables.rows import every_row

HEAVY = ("asyncio", "psutil", "rich", "numpy", "click", "msgspec", "logging", "inspect", "concurrent.futures", "pytest")


def modules_after(program: str) -> set[str]:
    """Names of the modules a fresh interpreter has loaded after running the program."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_but_itself() -> None:
    before = modules_after("")
    added = {name for name in modules_after("import shmq") - before if name.startswith("shmq")}
    assert added == {"shmq", "shmq.version"}
    assert {"typing", "re"} & modules_after("import shmq") <= before


def test_connecting_loads_no_heavy_library() -> None:
    loaded = modules_after(
        "import shmq\ntry:\n    shmq.connect('shmq:///nonexistent/broker')\nexcept shmq.BrokerNotRunning:\n    pass"
    )
    assert {"asyncio", "psutil", "rich", "numpy", "click", "concurrent.futures", "pytest"}.isdisjoint(loaded)


@pytest.mark.parametrize("module", ["asyncio", "rich", "numpy", "click"])
def test_the_broker_for_tests_is_light(module: str) -> None:
    assert module not in modules_after("import shmq.testing")


def test_the_pytest_plugin_does_not_import_pytest_itself() -> None:
    assert "pytest" not in modules_after("import shmq.testing")


def test_every_name_listed_is_there() -> None:
    for name in shmq.__all__:
        assert getattr(shmq, name) is not None
    assert set(shmq.__all__) <= set(dir(shmq))


def test_a_name_that_is_not_listed_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_that"):
        _ = shmq.nothing_like_that


def test_every_error_is_offered_at_the_top() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == "shmq.errors"
    }
    assert raised <= set(shmq.__all__)


@pytest.mark.parametrize("module", [shmq, shmq.aio], ids=lambda module: module.__name__)
def test_everything_public_is_documented(module: ModuleType) -> None:
    missing = []
    for name in module.__all__:
        value = getattr(module, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value):
            missing.append(name)
        if inspect.isclass(value) and value.__module__.startswith(("shmq.client", "shmq.aio")):
            for member, attribute in vars(value).items():
                described = attribute.fget if isinstance(attribute, property) else attribute
                if not member.startswith("_") and callable(described) and not inspect.getdoc(described):
                    missing.append(f"{name}.{member}")
    assert not [entry for entry in missing if not entry.startswith("TypedMessage.")]


def test_the_hot_methods_are_documented_where_they_are_looked_for() -> None:
    for name in ("send", "send_oneway", "send_batch", "reserve"):
        assert inspect.getdoc(getattr(shmq.Connection, name))


@every_row(
    ("kind", "name", "parameters"),
    [
        ("Producer", "send", "topic body tag key keys properties message_group queue_id flag timeout delay_level"),
        ("Producer", "send_oneway", "topic body tag key keys properties message_group queue_id flag timeout"),
        ("Producer", "send_batch", "topic bodies tag keys properties message_group queue_id timeout"),
        ("Producer", "reserve", "topic size tag key properties message_group queue_id timeout"),
        ("Message", "ack", ""),
        ("Message", "nack", "after"),
        ("Message", "extend", "seconds"),
        ("Message", "verify", ""),
        ("Slot", "commit", ""),
        ("Slot", "abort", ""),
    ],
)
def test_methods_of_the_core_have_signature_and_example(kind: str, name: str, parameters: str) -> None:
    method = getattr(getattr(core, kind), name)
    found = list(inspect.signature(method).parameters)
    assert found[0] == "self"
    assert found[1 : 1 + len(parameters.split())] == parameters.split()
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(method) or "")
    assert examples
    for example in examples:
        compile(example.source, f"{kind}.{name}", "single")
