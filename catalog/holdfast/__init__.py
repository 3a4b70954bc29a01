"""Holdfast: the durable state of a database environment, as definite, time-travelling collections."""
