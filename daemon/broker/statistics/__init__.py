"""Counts over time: RocketMQ's statistics, the traffic they come from, and the metrics."""
