"""Real RocketMQ programs for tests and benchmarks: fetched from public registries, started on loopback, ended by pid.

cache.py     the cache directory, its file locks, and what it means that a peer is missing
registry.py  what is fetched: jars, the Python, Node and Go clients; where they are afterwards
process.py   a child process with a log, a deadline and a certain end
stock.py     name server and broker of RocketMQ itself
java.py      one Java program with many sub-commands, `mqadmin` among them
programs.py  the same questions for the clients that are not Java
"""
