"""Random graphs: small valid models, each computed with and without what the planner rewrites.

`python -m tests.random_graphs 1000` makes and compares so many.  What may come of one is the same
numbers in every way, or a refusal that names the node.  Anything else is a defect: it is made as
small as it stays one, and kept as an ONNX file beside the command that repeats it.
"""
