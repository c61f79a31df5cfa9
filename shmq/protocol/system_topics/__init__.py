"""Topics that brokers make for themselves: names, groups, and the form of their records."""
