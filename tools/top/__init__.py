"""`shmq top`: a live view of the processes, topics and groups of one broker.

rates.py makes rows of two looks, table.py lays rows out, view.py makes a page of them, screen.py shows pages and reads
keys. All of it looks from outside (shmq.figures), so it goes on while the broker is stopped, hung or dead.
"""
