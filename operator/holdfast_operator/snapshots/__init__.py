"""CollectionSnapshots: takes a snapshot of a collection with a Spark job, and deletes its files."""
