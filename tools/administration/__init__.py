"""Commands about topics, groups and their progress."""
