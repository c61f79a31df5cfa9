"""Receiving: subscriptions, listeners, simple and pull consumers, and the life of their readers."""
