"""Serves administrators of a name server: write permissions, topics, keys and values, and its settings.

    205, 327, 216          write permissions of a broker, a topic is deleted; until the broker registers anew with
                           another version of its topics
    100, 101, 102, 219     keys and values in namespaces
    318, 319               the settings, as Java .properties text both ways

RocketMQ refuses a few names of settings and takes the rest, which let a request name files to be written
(CVE-2023-37582). Here only these switches exist; paths, addresses and classes have no name. They live in memory and end
with the process.

Invariant: a change of settings is taken as a whole or not at all.
"""

from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.daemon.nameserver.key_values import KeyValues
from shmq.daemon.nameserver.registry import Registry
from shmq.errors import PermissionDenied, UsageError
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.java_properties import java_properties, parse_java_properties
from shmq.protocol.route import KVTable

_DEFAULTS = {
    "orderMessageEnable": True,
    "returnOrderTopicConfigToBroker": True,
}
_VALUES = {"true": True, "false": False}


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


class KeyValueRequests(Part):
    """Serves the KV configuration."""

    def __init__(self, key_values: KeyValues) -> None:
        self._key_values = key_values

    @serves(Request.PUT_KV_CONFIG)
    def _put(self, call: Call) -> Answer:
        self._key_values.put(text_of(call.ext, "namespace"), text_of(call.ext, "key"), text_of(call.ext, "value"))
        return Answer()

    @serves(Request.GET_KV_CONFIG)
    def _get(self, call: Call) -> Answer:
        namespace, key = text_of(call.ext, "namespace"), text_of(call.ext, "key")
        value = self._key_values.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace[:255]} Key: {key[:255]}"
            return Answer(code=Response.QUERY_NOT_FOUND, remark=remark)
        return Answer(ext={"value": value})

    @serves(Request.DELETE_KV_CONFIG)
    def _delete(self, call: Call) -> Answer:
        self._key_values.delete(text_of(call.ext, "namespace"), text_of(call.ext, "key"))
        return Answer()

    @serves(Request.GET_KVLIST_BY_NAMESPACE)
    def _list(self, call: Call) -> Answer:
        namespace = text_of(call.ext, "namespace")
        values = self._key_values.namespace(namespace)
        if not values:
            return Answer(code=Response.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace[:255]}")
        return Answer(body=encode_body(KVTable(dict(values))))


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
