"""RocketMQ's store directory: files, checkpoint, configuration, recovery."""
