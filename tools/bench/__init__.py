"""`shmq bench`: its options, its tables and its saved runs; what is measured stands in benchmarks/measurement."""
