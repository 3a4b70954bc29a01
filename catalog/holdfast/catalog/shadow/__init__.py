"""A catalog that writes to two stores and compares every answer of the second with the first."""
