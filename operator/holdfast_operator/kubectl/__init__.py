"""The kubectl plugin."""
