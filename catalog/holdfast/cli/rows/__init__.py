"""Rows: reading them from files, and writing them to files or the terminal."""
