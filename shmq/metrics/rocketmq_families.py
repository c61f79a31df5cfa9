"""The metrics that have RocketMQ 5's names, as its broker exports them over HTTP, units in the names included.

Only metrics of the same meaning have such a name; a test compares names, kinds and labels with what a stock broker
exports.
"""

from __future__ import annotations

from shmq.metrics.family import (
    BRIDGE,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    KEEPER,
    MILLISECOND,
    RPC_BOUNDS,
    SIZE_BOUNDS,
    Family,
)

_TOPIC = ("topic", "message_type", "is_system")
_GROUP = ("topic", "consumer_group", "is_retry", "is_system")
_RPC = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
_STORAGE = ("storage_type", "storage_medium")

ROCKETMQ = (
    Family(
        "rocketmq_messages_in",
        COUNTER,
        "Messages stored in a topic since it was made.",
        "ends of its queues; `shmq topic show`, `mqadmin topicStatus`",
        _TOPIC,
    ),
    Family(
        "rocketmq_throughput_in",
        COUNTER,
        "Bytes of the records stored in a topic since the segments were made.",
        "byte counts of its queues",
        _TOPIC,
    ),
    Family(
        "rocketmq_message_size",
        HISTOGRAM,
        "Bytes of the records stored in a topic since the segments were made, as soon as their units are in files.",
        f"{KEEPER}, from the units",
        _TOPIC,
        bounds=SIZE_BOUNDS,
    ),
    Family(
        "rocketmq_messages_out",
        COUNTER,
        "Messages a group has committed. RocketMQ counts them when they are handed out.",
        "offsets of the group, looked at once a second; `mqadmin statsAll`",
        _GROUP,
    ),
    Family(
        "rocketmq_throughput_out",
        COUNTER,
        "Bytes of the records a group has committed.",
        "offsets of the group and sizes of the records",
        _GROUP,
    ),
    Family(
        "rocketmq_consumer_lag_messages",
        GAUGE,
        "Messages of a topic that are stored and that a group has not settled, those in hand included.",
        "ends of the queues less the group's offsets, and what is popped; `shmq group show`",
        _GROUP,
    ),
    Family(
        "rocketmq_consumer_lag_latency_milliseconds",
        GAUGE,
        "Age of the oldest message a group has not committed; 0 when there is none.",
        "store time of that record",
        _GROUP,
        "milliseconds",
    ),
    Family(
        "rocketmq_consumer_inflight_messages",
        GAUGE,
        "Messages between what the group has committed and what its members were handed last; popped ones until "
        "they are settled.",
        f"what each member of this host shows in its offset slot; pulls and pops: {BRIDGE}",
        _GROUP,
    ),
    Family(
        "rocketmq_consumer_ready_messages",
        GAUGE,
        "Messages of the lag that were not handed out yet, whether the group's filter selects them or not.",
        "lag less what was handed out",
        _GROUP,
    ),
    Family(
        "rocketmq_consumer_queueing_latency_milliseconds",
        GAUGE,
        "Age of the oldest message that no member was handed yet; 0 when there is none.",
        "store time of that record",
        _GROUP,
        "milliseconds",
    ),
    Family(
        "rocketmq_send_to_dlq_messages",
        COUNTER,
        "Messages a group could not consume, stored as dead letters.",
        "end of %DLQ%group; `shmq dlq list`",
        ("consumer_group",),
    ),
    Family("rocketmq_topic_number", GAUGE, "Topics, the broker's own included.", "topic table; `shmq topic list -a`"),
    Family("rocketmq_consumer_group_number", GAUGE, "Consumer groups.", "group table; `shmq group list`"),
    Family("rocketmq_broker_permission", GAUGE, "6: reads and writes; 4: reads only.", "read-only word of the log"),
    Family(
        "rocketmq_storage_size_bytes",
        GAUGE,
        "Bytes used on the store's disk, by all files.",
        "statvfs; `df`",
        _STORAGE,
        "bytes",
    ),
    Family(
        "rocketmq_storage_flush_behind_bytes",
        GAUGE,
        "Bytes of the log that are not on disk.",
        "log end less durable end; `mqadmin brokerStatus`: remainHowManyDataToFlush",
        _STORAGE,
        "bytes",
    ),
    Family(
        "rocketmq_storage_dispatch_behind_bytes",
        GAUGE,
        "Bytes of the log whose queue units or keys are not in their files. Consumers do not wait for that.",
        "log end less what the keeper has written",
        _STORAGE,
        "bytes",
    ),
    Family(
        "rocketmq_storage_message_reserve_time_milliseconds",
        GAUGE,
        "Age of the oldest message of the log.",
        "store time of the first record",
        _STORAGE,
        "milliseconds",
    ),
    Family(
        "rocketmq_rpc_latency_milliseconds",
        HISTOGRAM,
        "Time from a request's turn to its answer, over TCP and the Unix socket.",
        BRIDGE,
        _RPC,
        "milliseconds",
        RPC_BOUNDS,
        MILLISECOND,
    ),
    Family(
        "rocketmq_producer_connections",
        GAUGE,
        "Producers that send heartbeats.",
        f"{BRIDGE}; `mqadmin producerConnection`",
        ("language", "version", "protocol_type"),
    ),
    Family(
        "rocketmq_consumer_connections",
        GAUGE,
        "Members of consumer groups.",
        f"{BRIDGE}; `mqadmin consumerConnection`, `shmq group show`",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
    ),
    Family("rocketmq_half_messages", GAUGE, "Transactions that are open.", f"{BRIDGE}; `shmq tx list`"),
    Family(
        "rocketmq_commit_messages",
        COUNTER,
        "Transactions committed through the broker. Local producers mostly "
        "settle by themselves: shmq_transactions_settled counts these too.",
        BRIDGE,
    ),
    Family("rocketmq_rollback_messages", COUNTER, "Transactions rolled back through the broker.", BRIDGE),
    Family(
        "rocketmq_timing_messages",
        GAUGE,
        "Messages that wait for a time of their own.",
        f"{BRIDGE}; `shmq timer list`",
    ),
    Family("rocketmq_timer_dequeue", COUNTER, "Messages delivered at a time of their own.", BRIDGE),
)
