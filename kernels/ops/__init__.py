"""The operators: a family a file, or a folder where a family needs more."""
