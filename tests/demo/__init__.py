"""The main job of Holdfast on real data, from an empty machine: `make demo`."""
