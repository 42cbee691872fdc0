"""Random graphs: small valid models, each computed with and without the planner's rewrites.

`python -m tests.random_graphs 1000` makes and compares so many.  The result of one must be the same
numbers in every way, or a refusal that names the node.  Anything else is a defect: it is minimised,
and kept as an ONNX file with the command that repeats it.
"""
