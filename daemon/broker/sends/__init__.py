"""What is stored for a client: sends, replies, messages sent back, dead letters."""
