"""Manual work on a whole location: verify, sweep, recover, back up and restore."""
