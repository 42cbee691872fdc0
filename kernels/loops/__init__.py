"""Loops that several families share: the blocked product, maps, folds, windows."""
