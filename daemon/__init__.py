"""The processes of `shmq serve`: supervisor, store keeper, bridge."""
