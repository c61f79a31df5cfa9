"""What the sender of one request may do, for handlers that find out by reading what a request is about.

The admission judges what a request names: topics and groups. A log position, a message id, the offset of a transaction
or a staged chunk names nothing; the record it leads to says which topic it belongs to. The handler that reads it asks
here, before it answers or changes anything.

    no rules, or a local process, a white-listed address, an administrator    everything
    an account                                                               what the file says
    an unknown sender                                                         nothing

Rule: a refusal names the sender, never the topic of the record: that is not the sender's business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag

from shmq.errors import PermissionDenied
from shmq.protocol.codes import Response


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
