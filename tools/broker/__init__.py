"""How a command reaches the broker it is about: mapped memory, the control socket, or a cluster over TCP."""
