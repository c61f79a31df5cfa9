"""Sends and receives with the C++ client inside PyPI's rocketmq; run by recorder.py with the name server's address."""

import sys
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer


def message():
    made = Message("GoldenCpp")
    made.set_keys("K1")
    made.set_tags("TagA")
    made.set_property("colour", "blau")
    made.set_body("hello größe")
    return made


def until(seen, count):
    """Wait for messages, as long as it may take, but not for ever."""
    for _ in range(400):
        if len(seen) >= count:
            return
        time.sleep(0.1)


producer = Producer("GoldenProducer")
producer.set_namesrv_addr(sys.argv[1])
producer.start()
producer.send_sync(message())

seen = []


def on_message(received):
    seen.append(received.id)
    if len(seen) == 1:
        raise ValueError("deliver it again")


consumer = PushConsumer("GoldenConsumer")
consumer.set_namesrv_addr(sys.argv[1])
consumer.subscribe("GoldenCpp", on_message)
consumer.start()
ordered = PushConsumer("GoldenOrderly", orderly=True)
ordered.set_namesrv_addr(sys.argv[1])
ordered.set_instance_name("ordered")
ordered_seen = []
ordered.subscribe("GoldenCpp", lambda received: ordered_seen.append(received.id))
ordered.start()
time.sleep(5)  # a new group of this client begins at the end of the queues
producer.send_sync(message())
producer.send_batch([message(), message()])
producer.send_oneway(message())
until(seen, 2)
until(ordered_seen, 2)
time.sleep(8)
consumer.shutdown()
ordered.shutdown()
pulling = PullConsumer("GoldenPull")
pulling.set_namesrv_addr(sys.argv[1])
pulling.start()
list(pulling.pull("GoldenCpp"))
pulling.shutdown()
producer.shutdown()
