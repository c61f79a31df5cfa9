"""Who may do what: accounts, the needs of each request, and the admission in front of every handler."""
