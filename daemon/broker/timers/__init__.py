"""Messages that are delivered later: by delay level, and at a time of their own."""
