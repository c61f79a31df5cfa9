"""Errors cross the wire as what they are."""

import pytest

from shmq import errors
from shmq.errors import RemoteError, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import REMARK_CHARACTERS_MAX, error_of, failure_reply
from shmq.protocol.header import CommandDecoder, encode_command
from tests.tables.rows import every_row

REQUEST = Command(code=17, opaque=5)


def over_the_wire(error: ShmqError) -> ShmqError:
    decoder = CommandDecoder()
    decoder.feed(encode_command(failure_reply(REQUEST, error)))
    reply = decoder.take()
    assert reply is not None and reply.opaque == REQUEST.opaque
    received = error_of(reply)
    assert received is not None
    return received


@every_row(
    "error",
    [
        errors.TopicNotFound("topic x does not exist", hint="did you mean y?"),
        errors.InvalidName("bad"),
        errors.VersionMismatch("1 and 2", hint="upgrade"),
        errors.ForeignNamespace("other namespace"),
        errors.PermissionDenied("no"),
        errors.SubscriptionConflict("differs"),
        errors.SegmentFull("full"),
        errors.StoreError("all slots are taken"),
    ],
)
def test_an_error_arrives_with_type_text_code_and_hint(error: ShmqError) -> None:
    received = over_the_wire(error)
    assert type(received) is type(error)
    assert (str(received), received.hint, received.code) == (str(error), error.hint, error.code)


@pytest.mark.parametrize("kind", [errors.NotMaster, errors.CorruptionError])
@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_whether_a_message_may_be_stored_all_the_same_arrives(kind: type[ShmqError], is_in_doubt: bool) -> None:
    error = kind("/x", 5, "zero") if kind is errors.CorruptionError else kind("no master")  # type: ignore[call-arg]
    error.maybe_stored = is_in_doubt
    assert over_the_wire(error).maybe_stored is is_in_doubt


def test_an_error_without_a_place_on_the_wire_arrives_as_a_remote_error() -> None:
    received = over_the_wire(errors.CorruptionError("/x", 5, "zero"))
    assert isinstance(received, RemoteError)
    assert received.code == 1 and "byte 5" in received.remark


def test_a_remote_error_is_not_wrapped_twice() -> None:
    received = over_the_wire(RemoteError(22, "not found"))
    assert isinstance(received, RemoteError)
    assert (received.code, received.remark) == (22, "not found")


def test_success_is_no_error() -> None:
    assert error_of(REQUEST.reply()) is None


def test_a_rocketmq_brokers_reply_becomes_the_type_its_code_names() -> None:
    missing = error_of(Command(code=Response.TOPIC_NOT_EXIST, flag=1, remark="topic[x] not exist"))
    assert isinstance(missing, errors.TopicNotFound)
    other = error_of(Command(code=29, flag=1))
    assert isinstance(other, RemoteError) and other.code == 29


@every_row("name", ["object", "Exception", "SystemExit", "CorruptionError", "__class__", ""])
def test_the_wire_cannot_name_an_arbitrary_type(name: str) -> None:
    error = error_of(Command(code=1, flag=1, ext={"shmqError": name}, remark="r"))
    assert type(error) is RemoteError


def test_a_remark_is_bounded_and_always_encodable() -> None:
    received = over_the_wire(errors.StoreError("path \udcff " + "x" * 10_000, hint="\ud800"))
    assert len(str(received)) == REMARK_CHARACTERS_MAX
    assert received.hint == "?"
