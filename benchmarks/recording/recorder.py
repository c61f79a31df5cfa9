"""Captures the frames of tests/golden anew: `python -m benchmarks.recording.recorder [client …]` in the tree's root.

Owns which clients are driven through what. It does not know sockets (tap.py) or files (tests/golden/frames.py). It
needs Java, Go, Node and the registries, as tests/interop does, and takes minutes; the tests read what it left.

The longest frame of each (client, header encoding, request code) is kept, and of each code it was answered with.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.recording.tap import Seen, Tap
from shmq.protocol.codes import Request
from tests.deadline import eventually
from tests.golden import frames
from tests.interop.peers.java import ClientError, JavaClient
from tests.interop.peers.registry import python_of_cpp_client
from tests.interop.peers.stock import StockBroker

CLIENTS = Path(__file__).resolve().parent / "clients"
BINARY = "-Drocketmq.serialize.type=ROCKETMQ"
FRAME_BYTES_MAX = 6000
# Their bodies tell the directories of the machine that captured them.
_NOT_KEPT = {Request.GET_BROKER_CONFIG, Request.GET_BROKER_RUNTIME_INFO, Request.GET_NAMESRV_CONFIG}
Drive = Callable[[Tap], None]


def java(version: str, *options: str) -> Drive:
    """Drive the official Java client and its mqadmin."""

    def drive(tap: Tap) -> None:
        with JavaClient(version, *options) as client:
            _produce(client, tap)
            _consume(client, tap)
            _administrate(client, tap)

    return drive


def _produce(client: JavaClient, tap: Tap) -> None:
    topic = "GoldenTopic"
    client.do("producer", name="p", group="GoldenProducer", nameServer=tap.name_server)
    said = {"tag": "TagA", "key": "K1", "properties": {"colour": "blau"}}
    client.do("send", name="p", topic=topic, bodies=["hello", "größe"], **said)
    client.do("batch", name="p", topic=topic, bodies=["one", "two"])
    client.do("async", name="p", topic=topic, bodies=["later"])
    client.do("oneway", name="p", topic=topic, bodies=["never answered"])
    client.do("publish-queues", name="p", topic=topic)


def _consume(client: JavaClient, tap: Tap) -> None:
    topic, at = "GoldenTopic", {"topic": "GoldenTopic", "nameServer": tap.name_server}
    client.do("push", name="c", group="GoldenConsumer", failFirst=1, **at)
    client.do("push", name="o", group="GoldenOrderly", orderly=True, **at)
    client.expect("c", 6)
    client.expect("o", 5)
    client.do("pull", name="l", group="GoldenPull", **at)
    queue = {"name": "l", "topic": topic, "broker": "broker-a", "queue": 0}
    client.do("pull-queues", name="l", topic=topic)
    client.do("pull-offsets", timestamp=0, **queue)
    client.do("pull-once", offset=0, **queue)
    client.do("pull-once", offset=999, **queue)
    client.do("pull-commit", offset=1, **queue)
    for verb, name in (("pull-close", "l"), ("push-close", "c"), ("push-close", "o"), ("producer-close", "p")):
        client.do(verb, name=name)


def _administrate(client: JavaClient, tap: Tap) -> None:
    to_ns, to_broker = ["-n", tap.name_server], ["-b", tap.broker_address]
    for words in (
        ["updateTopic", *to_ns, *to_broker, "-t", "GoldenMade"],
        ["updateSubGroup", *to_ns, *to_broker, "-g", "GoldenGroup"],
        ["clusterList", *to_ns],
        ["topicList", *to_ns],
        ["topicRoute", *to_ns, "-t", "GoldenTopic"],
        ["topicStatus", *to_ns, "-t", "GoldenTopic"],
        ["consumerProgress", *to_ns, "-g", "GoldenConsumer"],
        ["queryMsgByKey", *to_ns, "-t", "GoldenTopic", "-k", "K1"],
        ["brokerConsumeStats", *to_ns, *to_broker],
        ["consumerConnection", *to_ns, "-g", "GoldenConsumer"],
        ["producerConnection", *to_ns, "-g", "GoldenProducer", "-t", "GoldenTopic"],
        ["updateKvConfig", *to_ns, "-s", "GoldenSpace", "-k", "a", "-v", "b"],
        ["wipeWritePerm", *to_ns, "-b", "broker-a"],
        ["addWritePerm", *to_ns, "-b", "broker-a"],
        ["deleteSubGroup", *to_ns, *to_broker, "-g", "GoldenGroup"],
        ["deleteTopic", *to_ns, "-c", "DefaultCluster", "-t", "GoldenMade"],
    ):
        try:
            client.do("mqadmin", words=words)
        except ClientError as error:
            print(f"  {words[0]}: {error}", file=sys.stderr)


def script(*command: str | Path) -> Drive:
    """Drive a client by a program of `clients/` that takes the name server's address."""

    def drive(tap: Tap) -> None:
        words = [str(word) for word in command]
        result = subprocess.run([*words, tap.name_server], capture_output=True, text=True, timeout=180, check=False)
        if result.returncode:
            print(f"  {words}: {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}", file=sys.stderr)

    return drive


def node(tap: Tap) -> None:
    """Drive npm's ali-ons, which wants a topic that exists."""
    with JavaClient("4") as admin:
        admin.do("mqadmin", words=["updateTopic", "-n", tap.name_server, "-b", tap.broker_address, "-t", "GoldenNode"])
    tap.seen.clear()
    with tempfile.TemporaryDirectory(prefix="shmq-golden-") as directory:
        (Path(directory) / "client.js").write_text((CLIENTS / "ali_ons.js").read_text())
        install = ["npm", "install", "--silent", "ali-ons@3.12.0", "urllib@2"]
        subprocess.run(install, cwd=directory, check=True, timeout=300)
        script("node", Path(directory) / "client.js")(tap)


def go(tap: Tap) -> None:
    """Drive the Go client."""
    with tempfile.TemporaryDirectory(prefix="shmq-golden-") as directory:
        (Path(directory) / "main.go").write_text((CLIENTS / "main.go.txt").read_text())
        for words in (
            ["go", "mod", "init", "golden"],
            ["go", "get", "github.com/apache/rocketmq-client-go/v2@v2.1.2"],
            ["go", "build", "-buildvcs=false", "-o", "client", "."],
        ):
            subprocess.run(words, cwd=directory, check=True, timeout=600)
        script(Path(directory) / "client")(tap)


def cpp(tap: Tap) -> None:
    """Drive the C++ client."""
    script(python_of_cpp_client(), CLIENTS / "cpp.py")(tap)


_BINARY_HEADERS = "with rocketmq.serialize.type=ROCKETMQ"
RUNS: dict[str, tuple[str, str, Drive]] = {
    # name: (what it is, line of the stock broker, how it is driven)
    "java4": ("rocketmq-client and rocketmq-tools 4.9.8", "4", java("4")),
    "java4-binary": (f"rocketmq-client and rocketmq-tools 4.9.8 {_BINARY_HEADERS}", "4", java("4", BINARY)),
    "java5": ("rocketmq-client and rocketmq-tools 5.3.3", "5", java("5")),
    "java5-binary": (f"rocketmq-client and rocketmq-tools 5.3.3 {_BINARY_HEADERS}", "5", java("5", BINARY)),
    "go": ("rocketmq-client-go 2.1.2", "4", go),
    "cpp": ("rocketmq-client-cpp inside PyPI's rocketmq 0.4.4", "4", cpp),
    "node": ("npm's ali-ons 3.12.0", "4", node),
}


def kept(seen: list[Seen]) -> Iterator[tuple[str, str, bytes]]:
    """Yield (file name, direction, frame): of each code the request that says most, and so of each kind of reply."""
    asked: dict[tuple[int, bool, int], int] = {}
    found: dict[str, tuple[str, bytes]] = {}
    for frame in seen:
        says = frames.expectation(frame.data)
        way = f"client > {frame.server}" if frame.to_server else f"{frame.server} > client"
        name = f"{says['code']}-request"
        if says["flag"] & 1:
            code = asked.get((frame.connection, not frame.to_server, says["opaque"]))
            name, way = f"{code}-reply-{says['code']}", f"{way}, the answer to {code}"
            if code is None or code in _NOT_KEPT:
                continue
        else:
            asked[frame.connection, frame.to_server, says["opaque"]] = says["code"]
        if len(found.get(name, ("", b""))[1]) < len(frame.data) <= FRAME_BYTES_MAX:
            found[name] = way, frame.data
    for name, (way, data) in found.items():
        yield name, way, data


def record(name: str) -> int:
    """Capture one client; return how many frames were kept."""
    what, line, drive = RUNS[name]
    with StockBroker(line) as broker:
        tap = Tap(broker.name_server, broker.broker_address)
        try:
            drive(tap)
            eventually(lambda: tap.seen, "frames")
        finally:
            tap.close()
    for old in frames.HERE.glob(f"{name}-[0-9]*{frames.SUFFIX}"):
        old.unlink()
    count = 0
    server = {"4": "stock 4.9.7 name server and broker", "5": "stock 5.3.3 name server and broker"}[line]
    for kind, way, data in kept(list(tap.seen)):
        notes = {"captured": f"benchmarks.recording.recorder {name}, between {what} and a {server}", "direction": way}
        frames.write(f"{name}-{kind}", notes, data)
        count += 1
    return count


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RUNS:
        print(wanted, record(wanted), flush=True)
