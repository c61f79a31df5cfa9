"""A name server without sockets: commands in, replies out, brokers and clients as connection numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shmq.addresses import Address
from shmq.daemon.logic.effects import Reply
from shmq.daemon.nameserver.embedded_broker import EmbeddedBroker
from shmq.daemon.nameserver.key_values import Keeper
from shmq.daemon.nameserver.nameserver import NameServer
from shmq.daemon.nameserver.registration import QueueEntry
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.protocol.codes import Request
from shmq.protocol.command import Command


def topic_config(name: str, queues: int = 4, *, perm: int = 6, flags: int = 0) -> dict[str, Any]:
    """One topic as a 4.9 broker writes it."""
    return {
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": flags,
        "writeQueueNums": queues,
    }


def registration_body(*topics: dict[str, Any], counter: int = 1, timestamp: int = 1700000000000) -> bytes:
    """The body of REGISTER_BROKER, not compressed."""
    wrapper = {
        "dataVersion": {"counter": counter, "timestamp": timestamp},
        "topicConfigTable": {topic["topicName"]: topic for topic in topics},
    }
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}, separators=(",", ":")).encode()


class Desk:
    """One name server and a clock that stands still unless it is moved."""

    def __init__(self, settings: NameServerSettings | None = None, keeper: Keeper | None = None) -> None:
        self.server = NameServer(settings, keeper)
        self.now_ms = 1_000_000
        self._connection_id = 0

    def connect(self, host: str = "127.0.0.1", *, local: str = "127.0.0.1") -> int:
        self._connection_id += 1
        self.server.connected(
            self._connection_id, None, self.now_ms, remote=Address(host, 40000), local=Address(local, 9876)
        )
        return self._connection_id

    def ask(
        self, connection_id: int, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        """Send a request and return the one reply."""
        command = Command(code, opaque=7, ext=dict(ext or {}), body=body, **more)
        effects = self.server.handle(connection_id, command, self.now_ms)
        replies = [effect for effect in effects if isinstance(effect, Reply)]
        assert len(replies) == 1 and effects[0] is replies[0]
        return replies[0].command

    def register(self, connection_id: int, body: bytes, **ext: str) -> Command:
        """Register broker-a of DefaultCluster unless `ext` says otherwise."""
        fields = {
            "brokerName": "broker-a",
            "brokerAddr": "10.0.0.1:10911",
            "clusterName": "DefaultCluster",
            "haServerAddr": "10.0.0.1:10912",
            "brokerId": "0",
        }
        return self.ask(connection_id, Request.REGISTER_BROKER, fields | ext, body)

    def route(self, connection_id: int, topic: str, *, version: int = 409, **ext: str) -> Command:
        return self.ask(connection_id, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext}, version=version)

    def embed(self, *topics: str, version: int = 1, address: str = "", name: str = "default") -> None:
        """Register the broker of this process."""
        entries = {topic: QueueEntry(4, 4, 6, 0) for topic in topics}
        self.server.register(
            EmbeddedBroker("DefaultCluster", name, address, 10911, version, topics=entries), self.now_ms
        )
