"""Requests and replies: a message and its answer."""
