"""Answers to sends: the header fields each of them has, and the answer to a message that was never read.

Owns those fields. It does not know when a send is refused, nor how messages are stored.

Every answer, an error too, carries MSG_REGION and TRACE_ON, because RocketMQ's clients read them unasked.
"""

from shmq.errors import ProtocolError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command

ANSWER_EXT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_SENDS = (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)


def sent_ext(message_id: str, queue_id: str, queue_offset: str) -> dict[str, str]:
    """Return the header fields of the answer to a send that succeeded."""
    return {**ANSWER_EXT, "msgId": message_id, "queueId": queue_id, "queueOffset": queue_offset}


def refuse_long_send(command: Command, body_bytes: int, frame_bytes_max: int) -> Command:
    """Return the answer to a send whose body was too long to be kept.

    Neither topic nor account are looked at: whoever it is from, it is refused, and a signature covers the body.

    Raises:
        ProtocolError: the command is no send, so nothing explains its length.
    """
    what = f"a message of {body_bytes} bytes; frames of {frame_bytes_max} bytes are allowed"
    if command.is_reply or command.code not in _SENDS:
        raise ProtocolError(f"command {command.code} brings {what}")
    return command.reply(Response.MESSAGE_ILLEGAL, ext=ANSWER_EXT, remark=f"the message is illegal: {what}")
