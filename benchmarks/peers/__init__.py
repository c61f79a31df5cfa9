"""The rivals of shmq on one host: each opens two ends in two processes and goes through the same measurements."""
