"""The stores that a spec names: allowed locations, credentials, and calls with deadlines."""
