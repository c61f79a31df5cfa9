"""The commands `shmq spark …`: one module a job, and what they share."""
