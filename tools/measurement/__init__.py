"""Throughput and latency: `shmq bench`, and the loops that the benchmarks share with it."""
