"""Handles: what callers write, read and hold a shard with.

Each handle works through the `Session` of its client. It never imports the client.
"""
