"""SQL over a run's tables, by DuckDB, which reads the run's Parquet files as they lie."""
