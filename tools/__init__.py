"""The `shmq` command: one module a command (`…_command.py`), in folders by what it is about.

`start.py` is the entry point, `cli.py` the table of commands, `command.py` what all commands share.
"""
