"""Owns the C core (see shmq.h) and its Python face, the extension `_core`; only `shmq.shm` imports it."""
