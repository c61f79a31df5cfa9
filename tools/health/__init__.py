"""What the figures of a snapshot mean: findings with a cause, a number and the next command to type."""
