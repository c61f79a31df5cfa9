"""Sockets: listening, accepting, TLS, and who is at the other end."""
