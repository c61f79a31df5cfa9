"""`shmq doctor`: what of this host, this installation, this store and this broker could trouble somebody, and the cure.

One module a subject; each check is a generator of findings (finding.py) over one `Case` (case.py). examine.py knows
them all, fix.py changes what is provably dead, bundle.py packs a report. Nothing but fix.py changes anything.
"""
