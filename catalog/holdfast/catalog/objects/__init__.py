"""The object types of the catalog and their encodings, as rows and as JSON. No stores."""
