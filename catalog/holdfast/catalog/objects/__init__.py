"""The object types of the catalog and their encodings as rows and as JSON. Uses no store."""
