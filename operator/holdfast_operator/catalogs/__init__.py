"""Catalogs: facts, a pure plan, the handler that observes and applies, and the handles on open catalogs."""
