"""Targets: CPUs, their instruction sets and levels."""
