"""Passes over a graph: each takes a graph and returns one that computes the same."""
