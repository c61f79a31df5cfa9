"""A broker, its other hosts, and which of them is the master."""
