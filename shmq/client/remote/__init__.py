"""The client over TCP: the same public API, spoken to any RocketMQ-compatible broker.

    sans-I/O     place · route · faults · selection · unique_id · outgoing · compression · process_queue · pulling · ...
    I/O thread   network (sockets, TLS) · name_service (routes) · session · producer · group_reader · pull_reader

A `RemoteSession` offers what `shmq.client.transport.Session` asks for; connections, consumers and listeners are those
of shared memory.
"""
