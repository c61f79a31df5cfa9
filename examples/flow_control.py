"""Send to a broker that may be full: errors say how much is used of what, and which ones it is worth trying again.

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
