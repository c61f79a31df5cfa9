"""Progress of groups, where a master is gone: what a slave does not know of it, and what only it knows."""
