"""The operators: one file per family, or a folder if a family needs several files."""
