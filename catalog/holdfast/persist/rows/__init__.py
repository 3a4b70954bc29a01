"""Rows of a shard in memory and in a part: schemas, order, merging, Arrow, Parquet. No shards, no stores."""
