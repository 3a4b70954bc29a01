"""Stores for the rows of a catalog: persist and a stash behind one interface."""
