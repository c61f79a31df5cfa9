"""Frames of a camera, written and read where they lie: no byte is copied between the two ends. Needs numpy."""

import numpy as np

import shmq

HEIGHT, WIDTH, CHANNELS = 480, 640, 3

with shmq.connect() as mq:
    with mq.reserve("frames", HEIGHT * WIDTH * CHANNELS) as slot:  # memory inside the log
        frame = np.frombuffer(slot.view, np.uint8).reshape(HEIGHT, WIDTH, CHANNELS)
        frame[:] = 0
        frame[100:200, 100:200] = 255
        slot.properties["camera"] = "left"
        del frame  # the memory is the log's again at the end of the block, which publishes the message

    for msg in mq.subscribe("frames", group="vision"):
        with msg:  # acknowledged at the end of the block, given back if it fails
            seen = np.frombuffer(msg.view, np.uint8).reshape(HEIGHT, WIDTH, CHANNELS)
            print(
                msg.properties["camera"], seen.shape, "bright pixels:", int((seen.max(axis=2) == 255).sum()), flush=True
            )
        break
