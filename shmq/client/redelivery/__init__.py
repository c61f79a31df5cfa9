"""Redelivery of messages that were not consumed: again later, sent back to the broker, or a dead letter."""
