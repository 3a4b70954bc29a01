"""The durable state of a shard: values, commands, pure transitions, and their stored form.

Only `machine`, the one compare-and-set loop, and `divergence`, which notices a second history, do I/O.
"""
