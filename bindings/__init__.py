"""The C core and its CPython face; only `shmq.shm` imports it."""
