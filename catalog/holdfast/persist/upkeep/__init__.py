"""Upkeep of shards: compaction, rollups, garbage collection, and the expiry of leases."""
