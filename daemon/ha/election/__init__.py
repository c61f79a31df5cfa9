"""Who is the master: epochs, the in-sync set, election, lease and fencing, decided without a socket or a clock."""
