"""The durable state of a shard: values, commands, pure transitions, and their stored form.

Only two modules do I/O: `machine`, the compare-and-set loop, and `divergence`, which detects a second
history.
"""
