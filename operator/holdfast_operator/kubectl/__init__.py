"""The kubectl plugin `kubectl holdfast`; not written yet."""
