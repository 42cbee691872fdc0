"""Machine code of kernels: made by workers, cached, shipped, checked and loaded."""
