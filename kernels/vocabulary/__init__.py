"""The words ops and kernels are declared in.  Light: nothing here imports numba or llvmlite."""
