"""A member that handles messages in order and writes down when: `ordering.py url group topic file`. SIGTERM ends it.

B queue offset pid ns    it has begun to handle a message
E queue offset pid ns    it is done
"""

import os
import sys
import time

import shmq

WORK_SECONDS = 0.005


def main() -> None:
    url, group, topic, file = sys.argv[1:]
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, message: shmq.Message) -> None:
        text = f"{what} {message.queue_id} {message.offset} {os.getpid()} {time.monotonic_ns()}\n"
        os.write(out, text.encode())

    with shmq.connect(url, timeout=60.0) as mq:

        @mq.listener(topic, group=group, ordered=True, threads=2)
        def handle(message: shmq.Message) -> None:
            note("B", message)
            time.sleep(WORK_SECONDS)  # not a wait: the work
            note("E", message)

        mq.run()


if __name__ == "__main__":
    main()
