"""RocketMQ's index of message keys: its files, how far it is built, and the checksums beside it."""
