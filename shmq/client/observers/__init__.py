"""Observers of a connection: RocketMQ's message trace and OpenTelemetry's spans."""
