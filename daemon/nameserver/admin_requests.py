"""What administrators change at a name server: write permissions and topics.

They are the requests 205, 327 and 216.

Both kinds of change last until the broker registers anew with another version of its topics.
"""

from shmq.daemon.broker.fields import text_of
from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.daemon.nameserver.registry import Registry
from shmq.protocol.codes import Request


class AdminRequests(Part):
    """Serves changes of what was registered."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @serves(Request.WIPE_WRITE_PERM_OF_BROKER)
    def _wipe(self, call: Call) -> Answer:
        count = self._registry.set_write_perm(text_of(call.ext, "brokerName"), is_allowed=False)
        return Answer(ext={"wipeTopicCount": str(count)})

    @serves(Request.ADD_WRITE_PERM_OF_BROKER)
    def _add(self, call: Call) -> Answer:
        count = self._registry.set_write_perm(text_of(call.ext, "brokerName"), is_allowed=True)
        return Answer(ext={"addTopicCount": str(count)})

    @serves(Request.DELETE_TOPIC_IN_NAMESRV)
    def _delete(self, call: Call) -> Answer:
        self._registry.delete_topic(text_of(call.ext, "topic"), cluster=call.ext.get("clusterName", ""))
        return Answer()
