"""A second host: the log of a master, copied to its slaves in RocketMQ's own stream."""
