"""`shmq doctor`: checks this host, the installation, the store and the broker, and names a cure for each trouble.

One module a subject; each check is a generator of findings (finding.py) over one `Case` (case.py). examine.py knows
them all, fix.py changes what is provably dead, bundle.py packs a report. Nothing but fix.py changes anything.
"""
