"""The version of the package and, with it, of every tool."""

__version__ = "0.1.0"
