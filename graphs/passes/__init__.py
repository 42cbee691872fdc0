"""Passes over a graph: each takes a graph and leaves one that computes the same."""
