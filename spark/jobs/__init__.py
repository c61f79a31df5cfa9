"""The jobs over the source: archive, replay, reconcile, lag, dlq.

    archive, replay, …   the work of a job as a function, and what `python -m` and spark-submit are given
    commands/            the options of `shmq spark …`
    table/               an archive: executors write Parquet files and hand the driver one entry a file; the driver
                         commits entries to Delta's log, all of a batch or none
    driver/              the Spark session, its output and its progress
    sender · growth      messages sent again, each once, by replay and dlq
    archived · ledger    what reconcile and replay read
    plots                pictures of the reports

Importing this package loads nothing.
"""
