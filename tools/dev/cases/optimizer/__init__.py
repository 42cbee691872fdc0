"""A file an optimizer: its step in float64, and the options with which it is compared."""
