"""Hostile input: whole artifacts, files and arguments with things wrong, each run to its end.

`python -m tests.fuzz 10000` makes and runs so many mutations.  The result of one must be a plan, a
run, or an `EngineError` other than `InternalError`.  Anything else is a defect: another exception,
a crash, more time or more memory than the bounds of `workers.py`.
"""
