"""What the sender of one request may do, for handlers that find out by reading what a request is about.

The admission judges what a request names: topics and groups. A log position, a message id, the offset of a transaction
or a staged chunk names nothing; the record it leads to says which topic it belongs to. The handler that reads it asks
here, before it tells anybody anything or changes anything.

    no rules, or a local process, a white-listed address, an administrator    everything
    an account                                                               what the file says
    nobody we know                                                           nothing

Rule: a refusal names the sender, never the topic of the record: that is not the sender's business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag

from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord
from shmq.errors import PermissionDenied
from shmq.message import POP_RETRY, POP_RETRY_OLD, popped_topic
from shmq.protocol.codes import Response

RETRY_TOPIC = "RETRY_TOPIC"  # property of what comes again: the topic it was sent to


class Permission(IntFlag):
    """What may be done with a topic, or with the group of a retry topic."""

    DENY = 0
    PUB = 1
    SUB = 2


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of one sender; `permission_on` is None for one who may do everything."""

    name: str = ""
    permission_on: Callable[[str], Permission] | None = None
    code: int = Response.NO_PERMISSION

    @property
    def is_everything(self) -> bool:
        """Whether nothing has to be asked."""
        return self.permission_on is None

    def may(self, resource: str, permission: Permission) -> bool:
        """Say whether the sender has a permission on a topic, or on the retry topic of a group."""
        return self.permission_on is None or bool(self.permission_on(resource) & permission)

    def check(self, resource: str, permission: Permission) -> None:
        """Let the sender touch what belongs to a topic.

        Raises:
            PermissionDenied: it may not.
        """
        if not self.may(resource, permission):
            error = PermissionDenied(
                f"No permission {permission.name} on the topic of what the request leads to, for accessKey={self.name}"
            )
            error.code = self.code
            raise error


EVERYTHING = Rights()
NOTHING = Rights(permission_on=lambda _: Permission.DENY)


def consumed_resource(record: StoredRecord, group: str) -> str:
    """Return what a member of a group needs SUB on for a record that it says it was given.

    What comes again to a group that pops lies in a retry topic of group and topic; the right on the topic counts.
    """
    first_topic = property_of(record.properties, RETRY_TOPIC) or ""
    return first_topic if record.topic in _popped_topics(group, first_topic) else record.topic


def _popped_topics(group: str, topic: str) -> set[str]:
    return {popped_topic(group, topic, flag) for flag in (POP_RETRY, POP_RETRY_OLD)}
