"""Defaults and limits of the broker's logic, and the broker's identity.

The numbers that bound the logic stand here, with their reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shmq.addresses import Address
from shmq.filter.program import CHARACTERS_MAX
from shmq.options.broker import Options
from shmq.properties import PROPERTIES_BYTES_MAX


class Parting(NamedTuple):
    """From which log position on clients may have read other messages than this log has, and until when that counts.

    `until_ms` is of the monotonic clock.
    """

    log_position: int
    until_ms: int


@dataclass(slots=True)
class BrokerSettings:
    """Settings of the logic at its start. Later `administration/config.py` changes what it names, and nothing else."""

    broker_name: str
    version: str
    abi: int
    generation: int
    pid_namespace: int  # inode number; robust locks are only safe between processes of one namespace
    options: Mapping[str, Any] = field(default_factory=dict)  # all settings in force at the start
    origins: Mapping[str, str] = field(default_factory=dict)  # where those come from that are no defaults
    instance: Mapping[str, Any] = field(default_factory=dict)  # the JSON object a client maps the segments by
    auto_create: bool = True
    broker_id: int = 0  # the master's
    is_slave: bool = False  # it stores nothing of its own; its master may not be elected yet
    default_queues: int = Options.default_queues
    wait_durable: bool = False
    confirms: bool = False  # slaves have to have what is acknowledged
    parting: Parting | None = None  # of a slave that was promoted and may lack what its master had
    cluster: str = Options.cluster
    store_identity: str = ""  # equal for two processes that see the same store, and only for them
    delay_levels: str = Options.delay_levels  # RocketMQ's messageDelayLevel
    timer_max_delay_seconds: int = Options.timer_max_delay_seconds  # RocketMQ's timerMaxDelaySec
    retention_hours: int = Options.retention_hours
    movable_clock: bool = False  # for tests
    uses_tls: bool = False
    serves_tcp: bool = False  # RocketMQ's own topics exist then
    advertised: Address | None = None  # what message ids say; None says what the client reached
    message_bytes_max: int = 4 << 20  # RocketMQ's maxMessageSize
    properties_bytes_max: int = PROPERTIES_BYTES_MAX
    flush_timeout_ms: int = 5000  # RocketMQ's syncFlushTimeout
    pull_count_max: int = 32  # RocketMQ's maxTransferCountOnMessageInMemory, and the one below
    pull_bytes_max: int = 256 << 10
    slave_reads_bytes: int = 0  # RocketMQ's slaveReadEnable, and how far behind; 0: never
    suspend_ms_max: int = 120_000  # RocketMQ's clients ask for 15 or 20 s
    held_pulls_max: int = 20_000
    held_pulls_per_connection_max: int = 4096  # one client of a topic of 1024 queues holds as many
    popped_per_queue_max: int = 10_000  # of one group, not settled; RocketMQ's popInflightMessageThreshold
    subscription_grace_ms: int = 600_000  # long enough to replace the members of a group one by one
    member_expiry_ms: int = 120_000  # RocketMQ's; its clients send a heartbeat every 30 s
    groups_per_client_max: int = 256
    topics_per_group_max: int = 1024
    members_per_group_max: int = 1024
    tags_characters_max: int = 32_767  # of one subscription; a pull carries it in a field of its header
    expression_characters_max: int = CHARACTERS_MAX  # of an SQL92 expression
    property_filter: bool = True  # RocketMQ's enablePropertyFilter, off there
    client_id_characters_max: int = 255
    transaction_timeout_ms: int = 6000  # RocketMQ's transactionTimeOut: a half message is asked about when it is older
    transaction_interval_ms: int = 30_000  # RocketMQ 5's transactionCheckInterval
    transaction_checks_max: int = 15  # RocketMQ's transactionCheckMax
    list_entries_max: int = 10_000  # topics, groups or queues in one administrative request or reply

    @property
    def timer_max_delay_ms(self) -> int:
        """How long a message may wait for a time of its own."""
        return self.timer_max_delay_seconds * 1000
