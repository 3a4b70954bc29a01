"""Moving a live catalog between a stash and persist, and back: see `truth` for which of them counts when."""
