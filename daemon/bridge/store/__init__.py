"""The broker's interfaces to the store, implemented over shared memory and files."""
