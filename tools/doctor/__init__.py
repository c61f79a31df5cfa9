"""`shmq doctor`: what could cause trouble on this host: its set-up, the installation, store and broker; and the cure.

One module a subject; each check is a generator of findings (finding.py) over one `Case` (case.py). examine.py knows
them all, fix.py changes what is provably dead, bundle.py packs a report. Nothing but fix.py changes anything.
"""
