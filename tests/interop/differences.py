"""Owns the written list of what shmq answers differently from a stock 4.9 broker to the same request.

It does not know the requests (script_client.py, script_admin.py).

    DELIBERATE   step -> why we want it otherwise; an entry whose difference has gone fails the test
    PENDING      step -> what is missing; the answer has to differ until it is not
"""

from __future__ import annotations

_REFUSED_EITHER_WAY = "a request without a mandatory field is refused; the stock broker looks for an empty name"
_REGION = "region and trace switch go with the reply to a send that could be read; no client reads them from this error"

DELIBERATE = {
    "route of an empty topic name": _REFUSED_EITHER_WAY,
    "route without a topic": _REFUSED_EITHER_WAY,
    "route without fields": _REFUSED_EITHER_WAY,
    "wipe without a broker": _REFUSED_EITHER_WAY,
    "unregister without a client": _REFUSED_EITHER_WAY,
    "offset without a group": _REFUSED_EITHER_WAY,
    "consumption of the broker without order": _REFUSED_EITHER_WAY,
    "a code the name server does not know": "answered with 3, as 5.x does; 4.9 leaves the client waiting",
    "send with long names and one field": _REGION,
    "send with long names without a topic": _REGION,
    "send to a word as queue": _REGION,
    "send a batch without messages": _REGION,
    "send a broken batch": _REGION,
    "send a batch to a retry topic": "refused: a batch cannot be retried, and no client sends one; 4.9 stores it",
    "lite pull": "served, as in 5.x: the lite pull consumer of 5.x clients asks it",
    "topics of a group": "served, as in 5.x",
    "topics of an unknown group": "served, as in 5.x",
    "subscription of a group": "served, as in 5.x",
    "status of an absent group's consumers": "says that no member is online, where 4.9 reports a null pointer",
    "units of an unknown queue": "an error, where 4.9 reports success without a body",
    "commit in an unknown topic": "refused with 17, as in 5.x; 4.9 keeps offsets of topics that do not exist",
    "pull with a broken expression": "refused with 23; 4.9 takes it for an expression without tags",
    "pull with a subscription that is newer than the heartbeat": "served whole where it selects by tags, which clients "
    "compare themselves; 4.9 gives nothing until the next heartbeat",
    "pull by broken SQL": "refused with 23; a stock broker delivers everything then",
    "reset the offset of an absent group": "the broker moves the offset itself, as in 5.x, also without members",
    "reset the offset in an unknown topic": "refused with 17 where 4.9 says 1; both print the same to people",
    "update the broker with nothing": "settings are changed by accounts only, and only those on a list",
    "resume the check of no half message": "refused; 4.9 makes a half message of any that is named",
    "update a blacklisted key": "settings are changed by accounts only, and only those on a list",
}


PENDING: dict[str, str] = {}
