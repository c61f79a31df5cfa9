"""The read model of a broker and its rules, for all that shows or judges it: read only, and below the client.

    model, mapped        topics, queues, progress of groups; read from mapped segments
    snapshot, observer   all that can be seen of a broker at once: shared memory, /proc, file systems, runtime directory
    verdict, thresholds  a finding, and from which number on there is one
    …_rules, health      what the figures mean; what a client that is attached may say of it

No daemon is asked, so a broker that is stopped, hung or dead is seen like any other; a request to the bridge would show
least exactly when it matters most. What only a daemon knows lies in the runtime directory: members, subscriptions and
departed members in roster.json (the bridge writes it within a second of a change), the marks of the disk and
what the last recovery found in instance.json.
"""
