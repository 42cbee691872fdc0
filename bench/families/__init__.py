"""Model families exported from library code, and whether they train as in PyTorch."""
