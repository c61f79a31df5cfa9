"""Commands that store, read, find and settle messages, and what they share."""
