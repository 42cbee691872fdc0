"""From a kernel template to machine code: one path for the JIT, its cache, wheels and builds."""
