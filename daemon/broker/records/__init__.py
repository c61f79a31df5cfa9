"""Stored records as bytes: their fields, their property text and the ids they are known by."""
