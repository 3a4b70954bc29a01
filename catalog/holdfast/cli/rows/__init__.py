"""Rows between files or the terminal and Arrow."""
