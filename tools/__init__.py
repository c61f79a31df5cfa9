"""The `shmq` command: one module a command (`…_command.py`), and what several of them need."""
