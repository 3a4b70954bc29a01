"""A catalog that writes to two stores, and compares every result of the second with the first."""
