"""From a kernel template to machine code: one path for this process, its cache and every build."""
