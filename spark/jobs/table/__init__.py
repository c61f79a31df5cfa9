"""An archive as a table: its entries, its manifests or Delta log, and the Parquet files that executors write."""
