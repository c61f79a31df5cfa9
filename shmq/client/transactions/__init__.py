"""Messages that become visible when their work is done, or never."""
