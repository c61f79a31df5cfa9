"""The brokers and engines that are measured: ours, stock RocketMQ ones, and Spark."""
