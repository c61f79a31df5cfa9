"""Requests and replies: a message somebody answers."""
