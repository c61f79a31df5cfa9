"""The wire over shared memory: the control socket, the mapped segments, and the readers of this host's log."""
