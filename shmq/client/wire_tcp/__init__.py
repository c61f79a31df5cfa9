"""The wire over TCP: name servers, routes, channels and pull requests, towards any RocketMQ-compatible broker."""
