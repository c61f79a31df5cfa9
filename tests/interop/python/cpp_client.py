"""The C++ client inside PyPI's rocketmq==0.4.4, driven by lines of JSON as java/Main.java is, in a venv of its own.

The pull consumer of this wrapper starts every queue at 0, and none of its consumers says where to start.
"""

import json
import os
import sys
import threading

# The library writes to standard output now and then; answers go where nothing else can write.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage  # noqa: E402
from rocketmq.exceptions import ffi_check  # noqa: E402
from rocketmq.ffi import MessageModel, dll  # noqa: E402

TIMEOUT_MS = 10_000
CONSUME_SUCCESS = 0
RECONSUME_LATER = 1
_lock = threading.Lock()
_producers = {}
_consumers = {}


def _print(line):
    with _lock:
        ANSWERS.write(json.dumps(line) + "\n")


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


def _described(message):
    return {
        "topic": message.topic,
        "body": _text(message.body),
        "tag": _text(message.tags),
        "keys": _text(message.keys),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "reconsumeTimes": message.reconsume_times,
    }


def _messages(command):
    for body in command["bodies"]:
        message = Message(command["topic"])
        message.set_body(body)
        if "tag" in command:
            message.set_tags(command["tag"])
        if "key" in command:
            message.set_keys(command["key"])
        yield message


def _result(sent):
    return {"status": "SEND_" + sent.status.name, "msgId": sent.msg_id, "offset": sent.offset}


def producer(command):
    made = Producer(command["group"], timeout=TIMEOUT_MS)
    made.set_namesrv_addr(command["nameServer"])
    made.start()
    _producers[command["name"]] = made


def send(command):
    made = _producers[command["name"]]
    if "shard" in command:
        return [_result(made.send_orderly(message, command["shard"])) for message in _messages(command)]
    return [_result(made.send_sync(message)) for message in _messages(command)]


def batch(command):
    return _result(_producers[command["name"]].send_batch(list(_messages(command))))


def async_(command):
    done = threading.Semaphore(0)
    results = []

    def succeeded(sent):
        results.append(_result(sent))
        done.release()

    def failed(error):
        results.append({"status": f"FAILED: {error}"})
        done.release()

    messages = list(_messages(command))
    for message in messages:
        _producers[command["name"]].send_async(message, succeeded, failed)
    for _ in messages:
        if not done.acquire(timeout=TIMEOUT_MS / 1000):
            raise RuntimeError("an asynchronous send did not end")
    return results


def oneway(command):
    messages = list(_messages(command))
    for message in messages:
        _producers[command["name"]].send_oneway(message)


def push(command):
    name, fail_first = command["name"], command.get("failFirst", 0)
    model = MessageModel.BROADCASTING if command.get("broadcast") else MessageModel.CLUSTERING
    made = PushConsumer(command["group"], orderly=bool(command.get("orderly")), message_model=model)
    made.set_namesrv_addr(command["nameServer"])
    made.set_instance_name(name)
    made.set_thread_count(2)

    def arrived(_consumer, handle):
        message = RecvMessage(handle)
        _print({"event": "message", "consumer": name, **_described(message)})
        return RECONSUME_LATER if message.reconsume_times < fail_first else CONSUME_SUCCESS

    # Not by made.subscribe(): the wrapper loses the status of a callback that fails, which then counts as success.
    ffi_check(dll.Subscribe(made._handle, command["topic"].encode(), command.get("tags", "*").encode()))
    made._register_callback(arrived)
    made.start()
    _consumers[name] = made


def pull_all(command):
    made = PullConsumer(command["group"])
    made.set_namesrv_addr(command["nameServer"])
    made.start()
    found = [_described(message) for message in made.pull(command["topic"], command.get("tags", "*"))]
    made.shutdown()
    return found


def close(command):
    for table in (_producers, _consumers):
        made = table.pop(command["name"], None)
        if made is not None:
            made.shutdown()


VERBS = {
    "producer": producer,
    "producer-close": close,
    "send": send,
    "batch": batch,
    "async": async_,
    "oneway": oneway,
    "push": push,
    "push-close": close,
    "pull-all": pull_all,
}

for line in sys.stdin:
    command = json.loads(line)
    try:
        _print({"id": command["id"], "result": VERBS[command["do"]](command)})
    except Exception as error:
        _print({"id": command["id"], "error": f"{type(error).__name__}: {error}", "code": -1})
os._exit(0)
