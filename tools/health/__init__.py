"""Judges the figures of a snapshot: findings with a cause, a number and the next command to type."""
