"""What can be seen of a broker from outside it: read-only looks at shared memory, /proc and the file systems.

`Observer` (observer.py) makes one `Snapshot` (snapshot.py); `shmq health`, `check`, `top`, `doctor` and the metrics
read nothing else. It judges nothing, and asks no daemon: all of it works while the broker is stopped, hung or dead.
"""
