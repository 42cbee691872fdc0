"""Emitters of vector LLVM IR: what kernels call and Python cannot say."""
