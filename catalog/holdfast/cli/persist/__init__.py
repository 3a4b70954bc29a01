"""`holdfast persist`."""
