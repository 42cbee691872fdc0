"""Kernels between guard pages: every call of a plan with its operands tight to inaccessible memory.

`python -m tests.guard` runs all case rows; tests/kernels/test_guard.py runs a sample of them.
"""
