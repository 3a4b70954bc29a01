"""Moves a live catalog between a stash and persist. See `truth` for which of the two counts at which time."""
