"""The store keeper: files, flush, ConsumeQueue files, configuration, watchdog."""
