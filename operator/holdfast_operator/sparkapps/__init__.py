"""Spark jobs on Kubernetes: one application per attempt, whatever operator runs it."""
