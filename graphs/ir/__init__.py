"""Graphs in memory: nodes, the sites ops see, symbolic dimensions, inference."""
