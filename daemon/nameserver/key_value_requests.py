"""Keys and values over the wire.

They are the requests 100, 101, 102 and 219.
"""

from shmq.daemon.broker.fields import text_of
from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.daemon.nameserver.key_values import KeyValues
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.route import KVTable


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
