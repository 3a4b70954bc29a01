"""`holdfast collection`."""
