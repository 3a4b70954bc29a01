"""The legacy time-varying key-value store of catalogs; not written yet."""
