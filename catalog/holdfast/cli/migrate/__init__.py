"""`holdfast migrate`."""
