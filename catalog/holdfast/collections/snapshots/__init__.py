"""Snapshots of a collection as files in a folder or a bucket, and their manifest."""
