"""Iceberg tables as targets of exports and snapshots. Needs the extra `iceberg`."""
