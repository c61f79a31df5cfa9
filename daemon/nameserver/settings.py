"""The settings of a name server, and its limits."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """Times in milliseconds.

    Attributes:
        match_addresses: a broker on another host may only register the address it is seen to come from. Off, because a
            stock broker behind NAT or in a container registers the address others reach it at.
    """

    expiry_ms: int = 120_000  # RocketMQ's; a broker registers every 30 s
    expiry_ms_min: int = 10_000  # of what a broker asks for itself
    expiry_ms_max: int = 600_000
    scan_interval_ms: int = 10_000
    match_addresses: bool = False
    topics_max: int = 100_000
    brokers_max: int = 1_000
    members_max: int = 16  # of one broker name: a master and its slaves
    routes_max: int = 200_000  # pairs of topic and broker
    filter_servers_max: int = 16
    inflated_bytes_max: int = 4 << 20  # of a compressed registration
    kv_entries_max: int = 10_000
    kv_bytes_max: int = 4 << 20  # of all keys and values together
    kv_value_bytes_max: int = 32_767


def with_room_for(topics: int) -> NameServerSettings:
    """Return the settings beside a broker: whatever others register, so many topics of its own find a place."""
    usual = NameServerSettings()
    return replace(usual, topics_max=usual.topics_max + topics, routes_max=usual.routes_max + topics)
