"""How messages are decoded into rows, a module for each format."""
