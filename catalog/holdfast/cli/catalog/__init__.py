"""`holdfast catalog`."""
