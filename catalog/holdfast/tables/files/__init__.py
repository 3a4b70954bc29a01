"""Files with rows: CSV, JSON lines, Parquet and Arrow. Read and written under the types of a schema."""
