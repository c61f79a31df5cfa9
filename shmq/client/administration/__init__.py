"""Topics, groups, offsets, dead letters and health, from Python."""
