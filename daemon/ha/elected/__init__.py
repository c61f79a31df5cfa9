"""A broker whose master is elected: the election's hands in this broker, and its process."""
