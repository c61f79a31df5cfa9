"""What a broker holds, in the types that every reader of figures shares; see `shmq.figures.model`."""
