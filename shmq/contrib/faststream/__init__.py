"""shmq under FastStream: subscribers and publishers of FastStream over topics and groups of shmq (extra `faststream`).

    broker.py       what users make: the broker, its connection, `publish` and `request`
    registrar.py    the decorators `subscriber` and `publisher`, of brokers and of routers
    subscriber.py   one group's member: a listener of shmq that hands messages to FastStream
    publisher.py    where a handler's result goes
    producer.py     a command of FastStream becomes a message, a message becomes FastStream's
    message.py      ack, nack, reject: what FastStream decides becomes what a listener of shmq does
    testing.py      `TestShmqBroker`: handlers without a broker

FastStream keeps the classes that a broker is made of to itself, and changes them between its minor versions; the extra
names the versions that were tested.
"""

from shmq.errors import UsageError

try:
    import faststream  # noqa: F401 - its parts need others, which it brings
except ModuleNotFoundError as error:
    raise UsageError("shmq.contrib.faststream needs FastStream", hint="pip install 'shmq[faststream]'") from error

from shmq.contrib.faststream.broker import ShmqBroker, ShmqRouter
from shmq.contrib.faststream.message import ShmqMessage
from shmq.contrib.faststream.producer import ShmqPublishCommand, ShmqResponse
from shmq.contrib.faststream.testing import TestShmqBroker

__all__ = ["ShmqBroker", "ShmqMessage", "ShmqPublishCommand", "ShmqResponse", "ShmqRouter", "TestShmqBroker"]
