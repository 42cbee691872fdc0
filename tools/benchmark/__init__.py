"""Benchmark in every installation: training steps of known models on this machine."""
