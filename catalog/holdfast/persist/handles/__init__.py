"""Handles: the objects with which callers write, read and hold a shard.

Each handle uses the `Session` of its client. It never imports the client.
"""
