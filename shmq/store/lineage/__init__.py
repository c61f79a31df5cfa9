"""The lineage of a log: its copies, the writer of each part, its beginning, and its cuts."""
