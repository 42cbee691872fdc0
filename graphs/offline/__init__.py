"""Offline half of the package: from a forward model to the graphs of the artifacts."""
