"""Trimmed builds: the training of a model as a small library for a device, without the engine."""
