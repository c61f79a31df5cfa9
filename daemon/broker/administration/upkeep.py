"""What tools ask a broker to clean up, and which topics are its own.

They are the requests 305, 306, 316 and 329. The keeper removes what is expired as soon as it is, so a request to clean
up finds it done.
"""

from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Topics
from shmq.daemon.broker.topics import system_topic_names
from shmq.message import is_system_topic
from shmq.protocol.admin_body import TopicList
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request


class UpkeepRequests(Part):
    """Serves cleaning and the list of system topics."""

    def __init__(self, tables: Topics, settings: BrokerSettings) -> None:
        self._tables = tables
        self._settings = settings

    @serves(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def _system_topics(self, call: Call) -> Answer:
        own = {self._settings.cluster, self._settings.broker_name, *system_topic_names(self._settings)}
        own.update(name for name in self._tables.topic_names() if is_system_topic(name))
        return Answer(body=encode_body(TopicList(sorted(own))))

    @serves(Request.CLEAN_EXPIRED_CONSUMEQUEUE, Request.CLEAN_UNUSED_TOPIC, Request.DELETE_EXPIRED_COMMITLOG)
    def _done(self, call: Call) -> Answer:
        return Answer()
