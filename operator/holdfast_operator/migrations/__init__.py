"""CatalogMigrations: facts, a pure plan, the handler that observes and applies, and the steps of a move."""
