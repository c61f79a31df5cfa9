"""Sending: producers, the keywords of a send, delays, compression, queue selectors."""
