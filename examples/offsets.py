"""Move the offsets of a group: to a time, back to an offset, to the end; copy them to another group.

shmq serve
python examples/offsets.py
"""

import shmq

with shmq.connect() as mq:
    mq.admin.create_topic("measurements", queues=1)
    mq.send_batch("measurements", [b"1", b"2", b"3", b"4"])
    with mq.pull_consumer("measurements") as reader:  # reads from where you seek, commits when you call it
        reader.seek(0, "-1h")
        print("the last hour:", [message.body for message in reader.poll(10, wait=5)])
        reader.commit("charts")

    charts = mq.admin.groups["charts"]
    print("behind:", charts.lag.total)
    print("again:", charts.reset("measurements", to=1)[0].again, "messages, behind:", charts.lag.total)
    charts.clone("audit")
    charts.skip("measurements")
    print("charts is behind", charts.lag.total, "and audit", mq.admin.groups["audit"].lag.total)
