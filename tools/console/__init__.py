"""`shmq console`: a broker of this host in a browser.

    console_command   the command: its address and its access rules
    application       puts the parts together: guard, pages, sampler
    access, guard     access rules, and refusals before a page sees a request
    source            the broker: one look that all pages share, and ways to its memory and its control plane
    pages/            one module a subject; each reads, and hands plain values to a template
    rendering, texts  templates, and what they say in English and in Chinese

It is a face only. Figures come from `shmq.figures`, verdicts from `shmq.tools.health`, rates from
`shmq.tools.top.rates`, changes go through the public connection and the commands' own functions, so a page says what
the command line says.
"""
