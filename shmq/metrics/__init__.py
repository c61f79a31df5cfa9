"""A broker's metrics: the table of all families; values are read from shared memory without the daemon's help."""
