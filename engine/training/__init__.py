"""Modules, optimizers and their state: what `engine.api` offers."""
