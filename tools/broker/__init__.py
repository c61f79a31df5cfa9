"""Reaches the broker of a command: mapped memory, the control socket, or a cluster over TCP."""
