"""Proves the parts of a store against each other: log, units, index, tables, transactions and delayed messages."""
