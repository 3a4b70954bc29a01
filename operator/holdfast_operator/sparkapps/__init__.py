"""Spark jobs on Kubernetes: one application per attempt, whatever runs it."""
