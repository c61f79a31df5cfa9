"""A broker with accounts and three bridges, a topic full of messages, and the URLs of a reader and a writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from shmq.testing import Broker

ACL = """
accounts:
- accessKey: spark-writer
  secretKey: secret-of-writer
  topicPerms: [guarded=PUB, copied=PUB, killed=PUB, wide=PUB]
- accessKey: spark-reader
  secretKey: secret-of-reader
  topicPerms: [guarded=SUB, copied=SUB]
  groupPerms: [spark-readers=SUB]
"""
READER = "access_key=spark-reader&secret_key=secret-of-reader"
WRITER = "access_key=spark-writer&secret_key=secret-of-writer"
MESSAGES = 400


@contextlib.contextmanager
def guarded_broker(directory: Path) -> Iterator[Broker]:
    """Start it, with topics `guarded`, which is full, `copied`, `killed` and `wide`."""
    path = directory / "plain_acl.yml"
    path.write_text(ACL)
    path.chmod(0o600)
    with Broker(tcp=True, bridges=3, acl=str(path), file_bytes=4 << 20) as broker, broker.connect() as mq:
        for topic in ("guarded", "copied", "killed", "wide"):
            mq.admin.create_topic(topic, queues=3)
        for number in range(MESSAGES):
            mq.send("guarded", b"%d|" % number + bytes(number * 7 % 2000), queue_id=number % 3, key=f"k{number}")
        yield broker


def address(broker: Broker, account: str = "") -> str:
    """Where an account reaches it over TCP."""
    return f"rocketmq://{broker.name_server}" + (f"?{account}" if account else "")
