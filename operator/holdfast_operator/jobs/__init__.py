"""The Spark jobs of a collection, as pure plans: snapshots, compactions and hydrations."""
