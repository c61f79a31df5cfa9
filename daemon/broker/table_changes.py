"""The requests that change topics and groups, when they are all refused, and what is said of those that are done.

    on a slave                          a topic or a group is the master's to change, and its slaves copy it
    where nothing can be saved          the tables are in shared memory, and the keeper saves them some 0.1 s later:
                                        what the disk does not take now would be gone after a restart
    where the keeper makes no rounds    done, and the remark of the answer says that it is not saved yet

Sends need no rule here. The log of a slave takes none, and its refusal has the code that RocketMQ's producers know: 14,
service not available.
"""

from collections.abc import Mapping
from typing import NoReturn

from shmq.daemon.broker.tables import StoreState
from shmq.daemon.logic.requests import Answer, Call, Handler
from shmq.errors import RemoteError
from shmq.protocol.codes import NOT_SAVED_YET, Request, Response

_CHANGES = (
    Request.UPDATE_AND_CREATE_TOPIC,
    Request.UPDATE_AND_CREATE_TOPIC_LIST,
    Request.DELETE_TOPIC_IN_BROKER,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Request.DELETE_SUBSCRIPTIONGROUP,
)
_SILENCE_SECONDS_MOST = 3.0  # as for a warning of health
_WHY = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def slave_refusals() -> Mapping[int, Handler]:
    """Return the handlers that a slave has in place of a master's."""
    return dict.fromkeys(map(int, _CHANGES), _refuse)


def _refuse(_call: Call) -> NoReturn:
    raise RemoteError(Response.SYSTEM_ERROR, _WHY)


def saved_changes(handlers: Mapping[int, Handler], state: StoreState) -> Mapping[int, Handler]:
    """Return the handlers of these requests, each preceded by the check."""
    return {int(code): _after_check(state, handlers[code]) for code in _CHANGES}


def _after_check(state: StoreState, handler: Handler) -> Handler:
    def handle(call: Call) -> Answer | None:
        state.check_savable()
        answer = handler(call)
        silence = state.keeper_silence_seconds()
        if answer is not None and silence > _SILENCE_SECONDS_MOST:
            answer.remark = f"{NOT_SAVED_YET}: the store keeper has made no round for {silence:.0f} s; see shmq health"
        return answer

    return handle
