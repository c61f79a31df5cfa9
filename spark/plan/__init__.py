"""Which offsets a load or a micro-batch reads, and how they are divided into partitions."""
