"""Loops that several families run: the blocked product, maps, folds, windows."""
