"""Drawings: facts as SVG text, which needs no script."""
