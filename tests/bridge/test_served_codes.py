"""A running broker and name server serve what the table of requests says, apart from a written list."""

import contextlib

from shmq.protocol.codes import Request, Response
from shmq.protocol.request_table import REQUESTS, RequestClass
from shmq.shm.addresses import read_addresses
from tests.bridge.live_bridge import RawPeer, running

REPLICATION = "replication is a later issue"
TIMER = "a slave's copy of 5.x's wheel; ours is a queue of the log, and offsets of groups (43) say what was delivered"

# Codes a client, an administrator or a server may send that no part here answers, and why.
NOT_SERVED = {
    Request.UPDATE_AND_GET_GROUP_FORBIDDEN: "5.x's second way to forbid a group a topic",
    Request.GET_TIMER_CHECK_POINT: TIMER,
    Request.GET_TIMER_METRICS: TIMER,
    Request.EXCHANGE_BROKER_HA_INFO: REPLICATION,
    Request.NOTIFY_MIN_BROKER_ID_CHANGE: REPLICATION,
}


def test_every_code_of_the_table_is_served_or_on_the_list() -> None:
    served: set[int] = set()
    with running(tcp=True) as bridge:
        addresses = read_addresses(bridge.place.addresses_path)
        for answers, name in (("broker", "broker"), ("namesrv", "nameserver")):
            host, port = addresses[name].rsplit(":", 1)
            with contextlib.closing(RawPeer((host, int(port)))) as peer:
                for code in (code for code, spec in REQUESTS.items() if spec.answers == answers):
                    if peer.ask(code).code != Response.REQUEST_CODE_NOT_SUPPORTED:
                        served.add(code)
    wanted = {
        code
        for code, spec in REQUESTS.items()
        if spec.answers in ("broker", "namesrv") and spec.asks != "local"
        if spec.request_class is not RequestClass.REFUSED
    }
    assert served <= wanted, "what is refused or local is served over TCP"
    assert wanted - served == set(NOT_SERVED)
