"""The broker's decisions as pure logic: requests in, effects out; no socket, no clock, no segment.

A room is a subject; it imports what stands below it, and modules of this folder but for `broker` and `worker`.

    broker · worker                            composition: all parts of a primary bridge, and of the others
    clients                                    connections of processes and of other bridges
    administration · pop                       administrators and their tools · messages of a topic, not of queues
    sends                                      sends, replies, messages sent back, dead letters
    transactions · rows                        half messages · rows that become visible together
    timers · pulls · statistics                delays and times · reading · counts over time
    groups · records                           members and offsets · bytes of stored records
    tables · log · settings · topics           what is below: interfaces, limits
    logic (a folder beside this one)           from a command to its handler and back, accounts, effects
"""
