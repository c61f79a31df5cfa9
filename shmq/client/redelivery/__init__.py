"""What happens to a message that was not consumed: again later, back to the broker, or the dead-letter topic."""
