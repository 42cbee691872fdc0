"""Trimmed builds: the training of a model as a library."""
