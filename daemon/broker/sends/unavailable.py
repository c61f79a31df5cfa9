"""Answers where this broker cannot acknowledge what it was sent: it takes nothing now, or what it took is in doubt.

RocketMQ's clients see code 14 and try another broker. A client of ours reads the error itself: what was not stored
waits for the next master, and what may be stored is tried again as after no answer, with `maybe_stored` in its error.
"""

from dataclasses import replace

from shmq.daemon.broker.sends.header import ANSWER_EXT
from shmq.daemon.logic.requests import Answer
from shmq.errors import BrokerNotRunning, NotMaster, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.failure import error_fields
from shmq.shm.core import doubted

_LEASE_OVER = doubted("it is stored here, but this broker is the master no more, and the new one may lack it")


def unavailable(error: ShmqError) -> Answer:
    """Return the answer for an error that other brokers may not have."""
    # A client of ours waits for the next master, and has to know what it did not store.
    fields = error_fields(error) if isinstance(error, (NotMaster, BrokerNotRunning)) else {}
    remark = f"service not available now. {error}"
    return Answer(code=Response.SERVICE_NOT_AVAILABLE, remark=remark, ext={**ANSWER_EXT, **fields})


def in_doubt(answer: Answer) -> Answer:
    """Return an answer that was to say "stored", once the lease is over; what else follows from the request stays."""
    refusal = unavailable(_LEASE_OVER)
    return replace(answer, code=refusal.code, remark=refusal.remark, ext=refusal.ext, body=b"", shared=None)
