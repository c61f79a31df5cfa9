"""Mapped memory: the only door to the C core, and where segments and runtime files lie."""
