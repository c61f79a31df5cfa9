"""The PySpark source `shmq`: topics of a broker on this host as data frames, read from its segments without asking it.

    spark.read.format("shmq").option("topic", "orders").load()

    source ─▶ options · schema         what was asked for, checked on the driver
           ─▶ stream ─▶ progress · admission    a streaming query's checkpoint, and how much a micro-batch takes
           ─▶ ranges ─▶ plan           which offsets, and which partition reads them
           ─▶ messages · frames · tables    what a partition yields: Arrow record batches
                 └▶ attach             one read-only attachment a process and broker

It does not know TCP, nor who produced what it reads. Importing it loads nothing.
"""
