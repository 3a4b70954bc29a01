"""Spark jobs on Kubernetes: one application for each attempt, with any adapter."""
