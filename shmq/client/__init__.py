"""The client library: connections, producers, consumers, groups, administration."""
