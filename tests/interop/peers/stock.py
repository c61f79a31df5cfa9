"""Owns a stock RocketMQ: name server and broker from their jars, on free ports of loopback, in a directory of its own.

It does not know who asks them.

(1) Configuration is RocketMQ's default, apart from addresses, directories, file sizes and the disk guard.
(2) Two JVMs; their sizes are arguments, because a test wants them small and a benchmark wants them fair.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.interop.peers.cache import program
from tests.interop.peers.process import Child, accepts
from tests.interop.peers.registry import DEFAULT_JDK, SERVERS, class_path, jars
from tests.interop.peers.wire import has_route
from tests.ports import free_ports

START_TIMEOUT = 60.0
SMALL_HEAP = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# RocketMQ unmaps files by reflection into the JDK; without these a stock broker on Java 17 keeps every file it deletes.
OPENED = ("java.base/sun.nio.ch", "java.base/java.nio", "java.base/jdk.internal.ref", "java.base/java.lang")
VIP_DISTANCE = -2
HA_DISTANCE = 1
SMALL_FILES = {"mapedFileSizeCommitLog": 16 << 20, "mappedFileSizeCommitLog": 16 << 20}
_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file><encoder><pattern>%d %p %c{{1}} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""
_LOGGED = ("namesrv", "broker", "tools")


def opened() -> list[str]:
    """Return the options by which Java 17 lets RocketMQ do what it does on Java 8."""
    return [option for package in OPENED for option in ("--add-opens", f"{package}=ALL-UNNAMED")]


def make_home(home: Path) -> Path:
    """Make a ROCKETMQ_HOME with the logging configuration every RocketMQ program asks for; returns it."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in _LOGGED:
        text = _LOGBACK.format(file=home / f"{name}.log")
        (home / "conf" / f"logback_{name}.xml").write_text(text)
        (home / "conf" / f"rmq.{name}.logback.xml").write_text(text)
    return home


class StockBroker:
    """A name server and a broker of one version, "4" or "5".

    Attributes:
        name_server, broker_address: "127.0.0.1:port".

    Args:
        registers_with: a name server "host:port" to use; without it one is started.
        registers_also: name servers besides that one, "host:port;host:port".
    """

    def __init__(
        self,
        version: str,
        *,
        heap: Sequence[str] = SMALL_HEAP,
        settings: dict[str, object] | None = None,
        registers_with: str = "",
        registers_also: str = "",
    ) -> None:
        self.version = version
        self.broker_name = "broker-a"
        self._heap = list(heap)
        self._settings = {**SMALL_FILES, **(settings or {})}
        self._registers_also = registers_also
        self._children: list[Child] = []
        self._java = program("java", DEFAULT_JDK)
        self._libraries = class_path(jars(SERVERS[version]))
        self.directory = Path(tempfile.mkdtemp(prefix="shmq-stock-"))
        self.name_server, self.broker_address = registers_with, ""

    @property
    def store(self) -> Path:
        """Its store directory."""
        return self.directory / "store"

    @property
    def pids(self) -> list[int]:
        """The name server's and the broker's process id."""
        return [child.process.pid for child in self._children]

    def start(self) -> Self:
        """Start both and wait until they answer."""
        make_home(self.directory)
        if not self.name_server:
            self._start_name_server()
        self.broker_address = f"127.0.0.1:{free_ports(VIP_DISTANCE, HA_DISTANCE)}"
        self.start_broker()
        return self

    def start_broker(self) -> None:
        """Start the broker, on its address and its store as they are, and wait until it answers."""
        port = int(self.broker_address.rpartition(":")[2])
        broker = self._launch(
            "org.apache.rocketmq.broker.BrokerStartup",
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": self.broker_name,
                "brokerId": 0,
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "listenPort": port,
                "haListenPort": port + HA_DISTANCE,
                "namesrvAddr": f"{self.name_server};{self._registers_also}".strip(";"),
                "storePathRootDir": self.store,
                "storePathCommitLog": self.store / "commitlog",
                "autoCreateTopicEnable": "true",
                "diskMaxUsedSpaceRatio": 99,
                "transactionTimeOut": 1000,  # it asks about transactions while a test waits for it
                "transactionCheckInterval": 2000,
                **self._settings,
            },
        )
        ready = "The broker["
        broker.wait_for(lambda: ready in broker.log and accepts(self.broker_address), "the broker boots", START_TIMEOUT)
        broker.wait_for(lambda: has_route(self.name_server, "TBW102"), "the broker registers", START_TIMEOUT)

    def end_broker(self, *, in_order: bool = False) -> None:
        """End the broker alone, at once or as an operator does; its store stays, and `start_broker` goes on."""
        broker = self._children.pop()
        (broker.stop if in_order else broker.kill)()

    def stop(self) -> None:
        """End both and remove their directory."""
        for child in reversed(self._children):
            child.kill()  # a polite stop of a JVM takes seconds, and this store is not read again
        self._children.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _start_name_server(self) -> None:
        self.name_server = f"127.0.0.1:{free_ports()}"
        servers = self._launch(
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            {"listenPort": self.name_server.split(":")[1], "kvConfigPath": self.directory / "kvConfig.json"},
        )
        servers.wait_for(lambda: accepts(self.name_server), "the name server listens", START_TIMEOUT)

    def _launch(self, main: str, properties: dict[str, object]) -> Child:
        name = main.rsplit(".", 1)[1]
        file = self.directory / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        logging = self.directory / "conf" / f"rmq.{'namesrv' if name.startswith('Name') else 'broker'}.logback.xml"
        command = [self._java, *self._heap, *opened(), f"-Duser.home={self.directory}"]
        command += [f"-Drmq.logback.configurationFile={logging}", "-cp", self._libraries, main, "-c", str(file)]
        child = Child(command, self.directory / f"{name}.out", env={"ROCKETMQ_HOME": str(self.directory)})
        self._children.append(child)
        return child
