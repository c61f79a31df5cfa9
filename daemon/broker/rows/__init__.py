"""Rows that become visible together: written aside in a hidden topic, copied to their queues by a commit."""
