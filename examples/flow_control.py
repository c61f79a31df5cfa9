"""Send to a broker that may be full: an error tells how much of what is used, and whether trying again makes sense.

shmq serve
python examples/flow_control.py
"""

import time

import shmq

with shmq.connect() as mq:
    for number in range(1000):
        while True:
            try:
                mq.send("orders", b"%d" % number, timeout=1.0)
                break
            except shmq.MeasuredError as full:  # BrokerBusy, SegmentFull, FlowControl
                print(f"{full.used} of {full.limit} used: {full}. {full.hint}")
                time.sleep(0.5)
    print("stored", mq.admin.topics["orders"].messages)
