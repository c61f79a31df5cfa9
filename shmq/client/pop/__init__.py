"""Simple consumers whose messages the broker hides: POP of RocketMQ 5, on this host and over TCP."""
