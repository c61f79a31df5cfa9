"""What a slave refuses: a topic or a group is the master's to change, and its slaves copy it.

Sends need no rule here. The log of a slave takes none, whoever asks, and its refusal has the code that RocketMQ's
producers know: 14, service not available.
"""

from collections.abc import Mapping
from typing import NoReturn

from shmq.daemon.broker.requests import Call, Handler
from shmq.errors import RemoteError
from shmq.protocol.codes import Request, Response

_REFUSED = (
    Request.UPDATE_AND_CREATE_TOPIC,
    Request.UPDATE_AND_CREATE_TOPIC_LIST,
    Request.DELETE_TOPIC_IN_BROKER,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Request.DELETE_SUBSCRIPTIONGROUP,
)
_WHY = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def slave_refusals() -> Mapping[int, Handler]:
    """Return the handlers that a slave has in place of a master's."""
    return dict.fromkeys(map(int, _REFUSED), _refuse)


def _refuse(_call: Call) -> NoReturn:
    raise RemoteError(Response.SYSTEM_ERROR, _WHY)
