"""Every default and limit of the Python client; times are seconds unless the name says otherwise."""

from __future__ import annotations

import os
from typing import Final

CONNECT_TIMEOUT: Final = float(os.environ.get("SHMQ_TEST_PATIENCE") or 3.0)
"""What `connect(timeout=)` is if not given: how long a connection waits for an answer of a broker or a name server, and
a send for the append lock, for space and for durability. 3 s are RocketMQ's sendMsgTimeout.

SHMQ_TEST_PATIENCE, in seconds, is for tests: on a machine that is busy with something else it is no failure to be late.
"""

# How long `close()` drains before it gives unsettled messages back.
CLOSE_TIMEOUT: Final = 5.0
# The same for a connection that is still open when the process ends.
EXIT_TIMEOUT: Final = 1.0
# RocketMQ's rebalance interval; a notification of the broker normally comes much earlier.
REBALANCE_INTERVAL: Final = 20.0
# Pause between two tries to map the segments of a broker that is back.
REATTACH_INTERVAL: Final = 1.0
# Pause between two tries to take a queue whose owner has not left yet; runs only while one is pending.
TAKE_INTERVAL: Final = 0.02
# How long a revoked queue waits for its messages in flight before the next member may read it.
REVOKE_TIMEOUT: Final = 1.0
# How often a broadcast consumer writes down how far it is: RocketMQ's persistConsumerOffsetInterval.
KEEP_OFFSETS_INTERVAL: Final = 5.0
# How long a queue without an offset waits before it counts as new, while its siblings already have offsets.
UNSET_QUEUE_GRACE: Final = 1.0
# A consumer without a queue for so long says why, once.
ASSIGNMENT_WARNING_AFTER: Final = 10.0
# Longest uninterrupted wait inside the core, so that Ctrl-C and `close()` are noticed.
ITERATION_SLICE: Final = 0.2
# Longest wait of the thread that reads replies for futures: a new request may have a nearer deadline.
REPLY_SLICE: Final = 0.05
# Longest time a signal may go unseen by `run()`, which otherwise only waits.
SIGNAL_SLICE: Final = 0.5
# Microseconds a reader spins, on a machine with an idle processor, before it sleeps.
SPIN_US: Final = 50
# Messages of one `receive()`; RocketMQ's consumeMessageBatchMaxSize in pull requests.
RECEIVE_MAX: Final = 32
# How long a simple consumer may work on a message before it is delivered again.
INVISIBLE: Final = 30.0
# RocketMQ's upper bound of an invisible time: 12 hours.
INVISIBLE_MAX: Final = 43_200.0
# Deliveries by one member before a message is moved to the dead-letter topic: one, and RocketMQ's 16 retries.
ATTEMPTS_MAX: Final = 17
RETRY_DELAYS: Final = (
    10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
)  # fmt: skip
"""RocketMQ's delay levels 3 to 18: the pause before attempt 2, 3, …"""

# Pause before another try when the dead-letter topic could not be written.
DEAD_LETTER_RETRY: Final = 1.0
# Pause before a message is delivered again that a remote broker would not take back (RocketMQ's 5 s).
SEND_BACK_RETRY: Final = 5.0
# How often acknowledged messages are dropped from the list of those whose invisible time runs.
PRUNE_INTERVAL: Final = 1.0
# Messages one `browse()` returns by default.
BROWSE_MAX: Final = 100
# The most it accepts; what it returns is held in memory.
BROWSE_LIMIT_MAX: Final = 10_000
# More threads than this in one listener is a mistake, not a setting.
LISTENER_THREADS_MAX: Final = 1024
# RocketMQ's pullThresholdForQueue: messages of one queue that may be taken and not settled.
HELD_COUNT_MAX: Final = 1000
# RocketMQ's pullThresholdSizeForQueue: the bytes of their records.
HELD_BYTES_MAX: Final = 100 << 20
# RocketMQ's consumeConcurrentlyMaxSpan: how far the newest of them may be ahead of the oldest.
HELD_SPAN_MAX: Final = 2000
# Messages taken ahead for each listener thread, so that a worker never waits for the dispatcher.
LISTENER_BACKLOG: Final = 4
# Sends that may wait in one producer before `send_nowait()` itself has to wait.
SEND_NOWAIT_MAX: Final = 10_000
# Pause between two looks for a topic that the broker has just been asked to create.
CREATE_POLL: Final = 0.002


def is_full(count: int, size_bytes: int, span: int) -> bool:
    """Say whether a consumer that holds so much of a queue takes no more; `span` is 0 where order keeps it small."""
    return count >= HELD_COUNT_MAX or size_bytes >= HELD_BYTES_MAX or span > HELD_SPAN_MAX


def retry_delay(attempt: int) -> float:
    """Return the pause after delivery number `attempt` (from 1) when the consumer named none."""
    return RETRY_DELAYS[min(max(attempt, 1), len(RETRY_DELAYS)) - 1]
