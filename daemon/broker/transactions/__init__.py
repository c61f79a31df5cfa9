"""Transactions: half messages, their settlement and the check-back of open ones."""
