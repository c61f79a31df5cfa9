"""Plans the offsets that a load or a micro-batch reads, and divides them into partitions."""
