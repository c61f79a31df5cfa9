"""What is read for a client: pulls, ranges of queues, and messages found by key or id."""
