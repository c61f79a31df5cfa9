"""Whose copy a log is, who wrote which part of it, where it begins, and where it was cut off."""
