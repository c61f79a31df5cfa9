"""An answer that many get is, frame by frame, what each would get alone."""

import pytest

from shmq.errors import UsageError
from shmq.protocol.codes import Codec
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.protocol.shared_reply import SharedReply
from tests.tables.rows import every_row

OPAQUES = [0, 1, 9, 10, 4711, (1 << 31) - 1, -1, -(1 << 31)]


@every_row("body", [b"", b"x" * 300], ids=["empty", "body"])
@every_row("remark", [None, "FOUND", 'he said "opaque":0, and left'], ids=["none", "word", "a trap"])
@every_row("ext", [{}, {"nextBeginOffset": "7"}, {"opaque": "0", "a": '"opaque":0,'}], ids=repr)
def test_each_frame_is_that_of_the_answer_alone(ext: dict[str, str], remark: str | None, body: bytes) -> None:
    shared = SharedReply()
    for opaque in OPAQUES:
        for codec in Codec:
            answer = Command(code=0, opaque=opaque, codec=codec).reply(ext=ext, remark=remark, body=body)
            assert shared.frame(answer) == encode_command(answer)


@pytest.mark.parametrize("codec", Codec)
def test_what_cannot_be_encoded_is_refused_each_time(codec: Codec) -> None:
    shared = SharedReply()
    for opaque in (1, 2):
        with pytest.raises(UsageError):
            shared.frame(Command(code=0, opaque=opaque, codec=codec).reply(ext={"name": "\ud800"}))
