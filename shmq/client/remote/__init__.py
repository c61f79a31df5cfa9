"""The client of a RocketMQ cluster: what it sends and reads over the wire, and its part in groups."""
