"""What can be seen of a broker from outside it: read-only looks at shared memory, /proc and the file systems.

`Observer` (observer.py) makes one `Snapshot` (snapshot.py); `shmq health`, `check`, `top` and `doctor` read nothing
else. No daemon is asked, so a broker that is stopped, hung or dead is seen like any other; a request to the bridge
would show least exactly when it matters most. What only a daemon knows lies in the runtime directory: members,
subscriptions and who ended without leaving in roster.json (the bridge writes it within a second of a change), the marks
of the disk and what the last recovery found in instance.json.
"""
