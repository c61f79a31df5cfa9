"""Owns the written list of what shmq answers differently from a stock 4.9 broker to the same request.

It does not know the requests (script_client.py, script_admin.py).

    DELIBERATE   step -> why we want it otherwise; an entry whose difference has gone fails the test
    PENDING      step -> what is missing; a strict xfail
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
    "status of an absent group's consumers": "says that nobody is online, where 4.9 reports a null pointer",
    "units of an unknown queue": "an error, where 4.9 reports success without a body",
}
_PULL = "pulling is not served yet"
_LOCKS = "queue locks are not served yet"
_CHECK = "the check of a subscription is not served yet"
_OFFSETS = "a topic or queue that is not there: stock brokers answer with zero"
_LIMITS = "a message that is too large is to be answered with 13, not with a close"
_ADMIN = "not served yet, or not as the stock broker does"

PENDING: dict[str, str] = {
    "send 5 MiB": _LIMITS,
    "send too many properties": _LIMITS,
    "greatest offset of an unknown topic": _OFFSETS,
    "greatest offset of an unknown queue": _OFFSETS,
    "least offset of an unknown topic": _OFFSETS,
    "offset in the far future": _OFFSETS,
    "offset at a time in an unknown topic": _OFFSETS,
    "time of the first message": _OFFSETS,
    "time of the first message of an empty queue": _OFFSETS,
    "time of the first message of an unknown topic": _OFFSETS,
    "commit in an unknown topic": _OFFSETS,
    "pull": _PULL,
    "pull one": _PULL,
    "pull from the end": _PULL,
    "pull far beyond the end": _PULL,
    "pull from before the beginning": _PULL,
    "pull from an empty queue": _PULL,
    "pull from an empty queue with an offset": _PULL,
    "pull from an unknown topic": _PULL,
    "pull from a queue that is not there": _PULL,
    "pull from a negative queue": _PULL,
    "pull by a tag": _PULL,
    "pull by a tag nobody sent": _PULL,
    "pull with a broken expression": _PULL,
    "pull by SQL": _PULL,
    "pull without a subscription of an absent group": _PULL,
    "pull without an offset": _PULL,
    "pull without a group": _PULL,
    "pull and wait for nothing": _PULL,
    "pull and commit": _PULL,
    "offset after a pull that commits": _OFFSETS,
    "pull as the heartbeat subscribed": _PULL,
    "pull with a subscription that is newer than the heartbeat": _PULL,
    "pull a topic that the heartbeat did not name": _PULL,
    "check a client's tags": _CHECK,
    "check a client's SQL": _CHECK,
    "lock queues": _LOCKS,
    "lock the queues of another": _LOCKS,
    "unlock queues": _LOCKS,
    "lock with a broken body": _LOCKS,
    "lock without a body": _LOCKS,
    "create a topic named as the broker's cluster": _ADMIN,
    "reset the offset of an absent group": _ADMIN,
    "reset the offset in an unknown topic": _ADMIN,
    "broker configuration": _ADMIN,
    "update the broker with nothing": _ADMIN,
    "update a blacklisted key": _ADMIN,
    "resume the check of no half message": _ADMIN,
    "time of the first message in another topic": _OFFSETS,
}
