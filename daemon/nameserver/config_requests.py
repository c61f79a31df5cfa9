"""The name server's settings over the wire: a list of what may be changed, and nothing else.

They are the requests 318 and 319.

    orderMessageEnable=true                  Java .properties text, both ways

RocketMQ refuses a few names and takes the rest, which let a request name files to be written (CVE-2023-37582). Here
only these switches exist; paths, addresses and classes have no name. They live in memory and end with the process.

Invariant: a change is taken as a whole or not at all.
"""

from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.errors import PermissionDenied, UsageError
from shmq.protocol.codes import Request
from shmq.protocol.java_properties import java_properties, parse_java_properties

_DEFAULTS = {
    "orderMessageEnable": True,
    "returnOrderTopicConfigToBroker": True,
}
_VALUES = {"true": True, "false": False}


class ConfigRequests(Part):
    """Serves the switches."""

    def __init__(self) -> None:
        self._switches = dict(_DEFAULTS)

    def is_on(self, name: str) -> bool:
        """Return one switch."""
        return self._switches[name]

    @serves(Request.GET_NAMESRV_CONFIG)
    def _get(self, call: Call) -> Answer:
        values = {name: "true" if is_on else "false" for name, is_on in self._switches.items()}
        return Answer(body=java_properties(values))

    @serves(Request.UPDATE_NAMESRV_CONFIG)
    def _update(self, call: Call) -> Answer:
        changed: dict[str, bool] = {}
        for name, value in parse_java_properties(call.command.body):
            if name not in self._switches:
                raise PermissionDenied(
                    f"Can not update config in black list. {name[:64]!a} is not one of {', '.join(_DEFAULTS)}",
                    hint="start the name server with other options: shmq nameserver --help",
                )
            if value not in _VALUES:
                raise UsageError(f"{name} is {value[:64]!a}; true or false is needed")
            changed[name] = _VALUES[value]
        self._switches |= changed
        return Answer()
