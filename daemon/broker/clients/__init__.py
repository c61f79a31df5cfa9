"""Connections: local processes, other bridges, questions put to clients, and who is there."""
