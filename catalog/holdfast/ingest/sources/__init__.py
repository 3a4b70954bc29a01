"""Sources of messages, a module for each kind."""
