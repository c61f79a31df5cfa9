"""The jobs over the source: archive, replay, reconcile, lag, dlq; each a function, a command and a main file.

    archive ─▶ archive_source ─▶ archive_file     executors write Parquet and hand the driver one entry a file
            ─▶ table ─▶ manifest | delta_table    the driver commits entries: in the archive, or not, nothing between
    *_command                                     the options of `shmq spark …`, the same for `spark-submit`
    report · plots                                what a run says: JSON, a table, pictures

It does not know how records are read (shmq.spark) nor how a command line works (shmq.tools). Importing it loads
nothing.
"""
