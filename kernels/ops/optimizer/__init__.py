"""Optimizer steps and gradient clipping."""
