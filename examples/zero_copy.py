"""Write and read the frames of a camera in place: no byte is copied between producer and consumer. Needs numpy.

shmq serve
python examples/zero_copy.py
"""

import numpy as np

import shmq

HEIGHT, WIDTH, CHANNELS = 480, 640, 3

with shmq.connect() as mq:
    with mq.reserve("frames", HEIGHT * WIDTH * CHANNELS) as slot:  # memory inside the log
        frame = np.frombuffer(slot.view, np.uint8).reshape(HEIGHT, WIDTH, CHANNELS)
        frame[:] = 0
        frame[100:200, 100:200] = 255
        slot.properties["camera"] = "left"
        del frame  # the end of the block publishes the message; its memory must not be written to any more

    for msg in mq.subscribe("frames", group="vision"):
        with msg:  # acknowledged at the end of the block, nacked if the block fails
            seen = np.frombuffer(msg.view, np.uint8).reshape(HEIGHT, WIDTH, CHANNELS)
            print(
                msg.properties["camera"], seen.shape, "bright pixels:", int((seen.max(axis=2) == 255).sum()), flush=True
            )
        break
