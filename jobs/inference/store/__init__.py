"""The completion store: append-only Parquet files, one folder per stage."""
