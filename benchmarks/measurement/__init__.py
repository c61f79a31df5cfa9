"""Throughput and latency as `shmq bench` and the benchmarks measure them; installed as `shmq.measurement`."""
