"""What a host that follows does with a leader elsewhere: members of its groups read this host's copy of the log."""
