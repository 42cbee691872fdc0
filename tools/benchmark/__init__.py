"""The benchmark that every installation has: training steps of known models on this machine."""
