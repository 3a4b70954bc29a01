"""Work on a whole location by hand: verify, sweep, recover, back up and restore."""
