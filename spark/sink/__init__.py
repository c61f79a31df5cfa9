"""Writing: the columns and options of the sink, its connections, and the two ways rows are stored."""
