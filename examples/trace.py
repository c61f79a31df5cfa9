"""Find out later who sent a message and who consumed it. `mqadmin queryMsgTraceById` reads the same trace.

shmq serve
python examples/trace.py
shmq message trace ID          # the ID that the example prints
"""

import threading

import shmq

done = threading.Event()

with shmq.connect(trace=True) as mq:
    receipt = mq.send("orders", b"42 apples", key="o-42")

    @mq.listener("orders", group="billing")
    def bill(message: shmq.Message) -> None:
        print("billed", message.key)
        done.set()

    mq.start()
    done.wait(20)
print("trace of", receipt.message_id)  # the trace is stored when the connection closes, at the latest
