"""The requests of administrators and their tools."""
