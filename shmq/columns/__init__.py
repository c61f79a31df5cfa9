"""Records as Arrow columns: their names, their batches, and reading a range of a queue; for client and Spark."""
