"""Owns the C core (shmq.h says what it is) and its Python face, the extension `_core`; `shmq.shm` is the only importer."""
