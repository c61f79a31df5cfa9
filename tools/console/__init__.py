"""`shmq console`: a broker of this host in a browser.

    console_command   the command: where it listens, who may come in
    application       puts the parts together: guard, pages, sampler
    access, guard     who may come in, and what is refused before a page sees it
    source            the broker: one look that all pages share, and ways to its memory and its control plane
    pages/            one module a subject; each reads, and hands plain values to a template
    rendering, texts  templates, and what they say in English and in Chinese

It is a face only. Figures come from `shmq.figures`, verdicts from `shmq.tools.health`, rates from
`shmq.tools.top.rates`, changes go through the public connection and the commands' own functions, so a page says what
the command line says.
"""
