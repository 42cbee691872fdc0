"""The workloads of `engine.tools.benchmark.workloads` in PyTorch, layer by layer the same.

Imported by a Python that has PyTorch and may have nothing of edgegrad.
"""
