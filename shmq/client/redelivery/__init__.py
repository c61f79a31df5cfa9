"""What happens to a message that was not consumed: again later, sent back to the broker, or a dead letter."""
