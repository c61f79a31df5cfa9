"""The PySpark source and sink; empty until that capability is built."""
