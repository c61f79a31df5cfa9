"""Every way a command can fail has one documented exit status."""

import re
from pathlib import Path

from shmq import errors
from shmq.exit_code import ExitCode
from shmq.tools.terminal.exit_code import EXIT_CODES, exit_code_of
from tests.tables.rows import every_row

PAGE = Path(__file__).parents[3] / "docs/reference/errors.md"
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ShmqError)]


def made(kind: type[errors.ShmqError]) -> errors.ShmqError:
    if issubclass(kind, errors.DamagedMessage):
        return kind("reason", topic="orders", queue_id=0, offset=0)
    if issubclass(kind, errors.CorruptionError):
        return kind("file", 0, "reason")
    if issubclass(kind, errors.RemoteError):
        return kind(9999, "remark")
    return kind("message")


def test_the_statuses_are_those_of_the_specification() -> None:
    assert sorted(ExitCode) == [0, 1, 64, 65, 69, 70, 73, 75, 77, 78, 130]


@every_row("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_page_section_that_names_its_exit_status(kind: type[errors.ShmqError]) -> None:
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)
    [section] = [text for text in sections if text.splitlines()[0] == kind.__name__]
    status = int(exit_code_of(made(kind)))
    assert re.search(rf"^\*\*Exit status\*\* {status}\b", section, re.MULTILINE), f"{kind.__name__} ends with {status}"
    for word in ("**Meaning**", "**Cause**", "**Cure**"):
        assert word in section


@every_row("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_may_succeed_later_never_ends_as_bad_usage_or_bad_data(kind: type[errors.ShmqError]) -> None:
    if kind.retryable:
        assert exit_code_of(made(kind)) in (ExitCode.TEMPORARY, ExitCode.UNREACHABLE)


@every_row(
    ("error", "status"),
    [
        (errors.BrokerNotRunning("x"), 69),
        (errors.PermissionDenied("x"), 77),
        (PermissionError(13, "x"), 77),
        (errors.SegmentError("x"), 73),
        (errors.StoreLocked("x"), 73),
        (errors.BrokerBusy("x"), 75),
        (errors.SendTimeout("x"), 75),
        (errors.FlowControl("x"), 75),
        (errors.RequestTimeout("x"), 75),
        (errors.TopicNotFound("x"), 1),
        (errors.InvalidName("x"), 64),
        (errors.FilterSyntaxError("x"), 65),
        (errors.SubscriptionConflict("x"), 78),
        (errors.RemoteError(16, "x"), 77),
        (errors.RemoteError(26, "x"), 1),
        (errors.RemoteError(2, "x"), 75),
        (errors.RemoteError(4711, "x"), 70),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 70),
    ],
)
def test_errors_end_with_the_status_a_script_expects(error: BaseException, status: int) -> None:
    assert exit_code_of(error) == status


def test_no_class_outside_the_tree_is_mapped() -> None:
    assert set(EXIT_CODES) <= set(KINDS)
