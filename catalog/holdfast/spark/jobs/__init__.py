"""Jobs for Spark. Each takes one JSON spec, holds what it reads, and commits once through its JobRecord."""
