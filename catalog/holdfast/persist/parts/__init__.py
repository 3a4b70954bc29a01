"""The parts of a shard between memory and Blob: writing runs, reading them back, and snapshots of them."""
