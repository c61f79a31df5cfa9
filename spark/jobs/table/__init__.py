"""An archive as a Delta table: its entries, its log, and the Parquet files that executors write."""
