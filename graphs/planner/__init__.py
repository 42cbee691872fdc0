"""From a graph and concrete shapes to a verified plan: lowering, ordering, memory placement."""
