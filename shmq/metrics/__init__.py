"""What a broker's figures are called, and how they are read: from shared memory, without the daemon's help."""
