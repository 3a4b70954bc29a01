"""The controller's records: their values, the commands on them as pure transitions, and their stored form."""
