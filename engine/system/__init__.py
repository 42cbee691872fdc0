"""Files, the kernel cache, locks, forks and settings: the ways to the operating system."""
