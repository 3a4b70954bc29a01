"""StorageCollections: facts, a pure plan, the handler that observes and applies, and their renditions."""
