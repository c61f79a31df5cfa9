"""What the logics of brokers and name servers share: a request comes in, effects go out; no socket, no clock.

    parking           requests that wait for room in the log
    deferred_work     work that is done a few items in a turn
    dispatch          from a command to its handler and back to a reply
    access            which requests there are, accounts, and what a sender may do
    requests, alarm   a part, what it receives and returns; when a part is woken
    effects           what is to be done, as data
    header_fields     header fields, checked

It imports nothing of the daemon but itself (`tests/test_layout.py`).
"""
