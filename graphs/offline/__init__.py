"""The offline half: from a forward model to the graphs of the artifacts."""
