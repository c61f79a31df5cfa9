"""Every error that the package defines, found by walking it, is the same after pickle, copy and a process pool."""

import copy
import errno
import importlib
import inspect
import pickle
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import pytest

import shmq
from shmq import errors
from shmq.bindings import _core
from shmq.filter.expression import Span
from shmq.filter.sql import sql_filter
from shmq.protocol.command import Command
from shmq.shm import core
from tests.tables.rows import every_row

RECEIPT = core.receipt_make("orders", 3, 17, 4096, 1_700_000_000_000, "0A000001", None)
ARGUMENTS: dict[str, Any] = {
    "message": "what happened",
    "reason": "why",
    "hint": "shmq serve",
    "text": "region = = 'eu'",
    "start": 9,
    "end": 10,
    "used": 5,
    "limit": 6,
    "holder_pid": 7,
    "path": Path("/store/commitlog"),
    "position": 4096,
    "topic": "orders",
    "queue_id": 3,
    "offset": 17,
    "record": b"record",
    "body": b"body",
    "code": 205,
    "remark": "no permission",
    "after": 2.5,
    "command": Command(105),
    "span": Span(3, 5),
}
"""What an `__init__` of an error may take; a new one has its line here."""


@cache
def _classes() -> tuple[type[BaseException], ...]:
    """Return every exception that the package defines, in modules that can be imported here."""
    found: dict[type[BaseException], None] = {}
    for module in pkgutil.walk_packages(shmq.__path__, "shmq."):
        if module.name.endswith("__main__"):
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except ImportError as error:
            assert not str(error.name or "").startswith("shmq"), module.name
            continue  # what it needs is not installed
        for thing in list(names.values()):
            if inspect.isclass(thing) and issubclass(thing, BaseException) and thing.__module__.startswith("shmq"):
                found[thing] = None
    del found[core._CoreFailure]  # half of a type: `_core_errors` makes whole ones
    return tuple(found)


def _made(kind: type[BaseException]) -> BaseException:
    """Return an error of a class with everything it can have."""
    if kind.__init__ in (Exception.__init__, BaseException.__init__):
        return kind("what happened", 7)
    if issubclass(kind, OSError) and kind.__init__ is OSError.__init__:
        return kind(errno.EINVAL, "what happened", "/store/lock")
    given = list(inspect.signature(kind).parameters.values())
    places = [ARGUMENTS[each.name] for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: ARGUMENTS[each.name] for each in given if each.kind is each.KEYWORD_ONLY}
    return kind(*places, **named)


def _decorated(error: BaseException) -> BaseException:
    error.add_note("seen by billing")
    for name, value in {"code": 99, "receipts": [RECEIPT], "maybe_stored": True, "order": "o-42"}.items():
        if isinstance(error, errors.ShmqError):
            setattr(error, name, value)
    return error


def _facts(error: BaseException) -> dict[str, Any]:
    """Return what is the same in a copy."""
    names = (
        "hint",
        "code",
        "retryable",
        "maybe_stored",
        "doc_url",
        "__notes__",
        "errno",
        "strerror",
        "filename",
        "msg",
    )
    slots = ("lineno", "offset", "end_lineno", "end_offset", "text")
    facts = {name: getattr(error, name, None) for name in (*names, *slots)}
    facts |= {name: repr(value) for name, value in vars(error).items()}
    return facts | {"kind": type(error), "text": str(error), "repr": repr(error), "args": list(map(repr, error.args))}


def _pickled(protocol: int) -> Callable[[BaseException], BaseException]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))


WAYS: dict[str, Callable[[Any], Any]] = {
    **{f"pickle protocol {number}": _pickled(number) for number in range(2, pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def _core_errors() -> Iterator[BaseException]:
    """Errors that the core makes: each is a public one and a CoreError at once."""
    for status in {*core._RAISED_AS, _core.CORRUPT, _core.SYSTEM, _core.READ_ONLY, 9999}:
        yield core.public_error(status, "log position 4096: what happened", 2, 5, 6, 7)
    yield core.damage_error(_core.CORRUPT, "torn", "orders", 3, 17, 4096, b"record", b"body")


def test_the_walk_finds_the_errors_that_are_known() -> None:
    public = {kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, BaseException)}
    assert public <= set(_classes()) and core.CoreError in _classes()


@every_row("way", WAYS)
def test_an_error_survives_being_copied_whole(way: str) -> None:
    for kind in _classes():
        error = _decorated(_made(kind))
        assert _facts(WAYS[way](error)) == _facts(error), kind
    for error in map(_decorated, _core_errors()):
        again = WAYS[way](error)
        assert _facts(again) == _facts(error) and isinstance(again, core.CoreError)


def test_a_caret_stays_under_its_fault() -> None:
    with pytest.raises(shmq.FilterSyntaxError) as caught:
        sql_filter("region = = 'eu'")
    for way in WAYS.values():
        again = way(caught.value)
        assert str(again) == str(caught.value) and "^" in str(again) and again.hint == caught.value.hint


def test_a_copy_has_notes_of_its_own() -> None:
    for kind in _classes():
        if issubclass(kind, errors.ShmqError):
            error = _decorated(_made(kind))
            copy.copy(error).add_note("of the copy")
            assert "of the copy" not in error.__notes__, kind


class Renamed(shmq.UsageError):
    """An application's own, whose __init__ takes something else than its base."""

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order}", hint="ask")
        self.customer = customer


class Slotted(shmq.ConnectError):
    """One that keeps what it knows in slots."""

    __slots__ = ("customer",)

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order}", hint="ask")
        self.customer = customer


class Made(shmq.TopicNotFound):
    """One whose __new__ takes something, too."""

    def __new__(cls, order: int, *, customer: str) -> Self:
        made = super().__new__(cls)
        made.customer = customer
        return made

    customer: str

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order}", hint="ask")


class Later(shmq.Retry):
    """One that a listener raises."""

    hint = "ask"

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order}", after=2.5)
        self.customer = customer


class Never(shmq.Reject):
    """Another one."""

    hint = "ask"

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order}")
        self.customer = customer


OWN: Final = (Renamed, Slotted, Made, Later, Never)


def test_an_error_that_an_application_derives_survives_too() -> None:
    for kind in OWN:
        error = kind(7, customer="Ada")
        for way in (*WAYS.values(), _pickled(0)):  # the oldest protocol asks in another way
            again = way(error)
            assert (type(again), str(again), again.hint, again.customer) == (kind, "order 7", "ask", "Ada")
            assert getattr(again, "after", None) == getattr(error, "after", None)


class Bare(shmq.ShmqError):
    """One whose __init__ does not call ours."""

    def __init__(self, order: int) -> None:
        self.order = order


class BareMeasured(Bare, shmq.BrokerBusy): ...


class BareFilter(Bare, shmq.FilterSyntaxError): ...


class BareRetry(shmq.Retry):
    def __init__(self, order: int) -> None:
        self.order = order


def test_one_that_leaves_our_init_out_is_shown_and_copied_all_the_same() -> None:
    for kind in (Bare, BareMeasured, BareFilter):
        error = kind(7)
        assert error.hint == "" and kind.__name__ in "".join(traceback.format_exception(error))
        for way in WAYS.values():
            assert (str(way(error)), way(error).order, way(error).hint) == (str(error), 7, "")
    busy: Any = BareMeasured(7)
    assert (busy.used, busy.limit, busy.holder_pid, BareRetry(7).after) == (0, 0, 0, None)


def _fail(number: int) -> NoReturn:
    raise _decorated(_made(_classes()[number]))


def _fail_as(kind: type[BaseException]) -> NoReturn:
    raise kind(7, customer="Ada")


def test_a_process_pool_raises_the_error_that_its_worker_raised() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        for number, kind in enumerate(_classes()):
            error = pool.submit(_fail, number).exception()
            assert error is not None and type(error) is kind
            assert _facts(error) == _facts(_decorated(_made(kind)))
        for own in OWN:
            assert type(pool.submit(_fail_as, own).exception()) is own
        assert pool.submit(len, "it goes on").result() == 10
