"""Memory of this process, as reported by the system."""

from __future__ import annotations

import sys


def measure_resident() -> int:
    """Return the resident bytes of this process; on other systems than Linux the peak so far.

    0 where the system reports neither, such as Windows.
    Source: statm of proc(5); ru_maxrss of getrusage(2), in KiB except on macOS.
    """
    if sys.platform == "win32":
        return 0
    import resource

    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def measure_peak() -> int:
    """Return the peak resident bytes of this process; 0 where the system does not report it.

    Source: VmHWM of proc(5), which starts again with the program; elsewhere ru_maxrss of
    getrusage(2), in KiB except on macOS.
    """
    if sys.platform == "win32":
        return 0
    import resource

    try:
        with open("/proc/self/status", "rb") as file:
            lines = (line.partition(b":") for line in file)
            return next(int(v.split()[0]) for name, _, v in lines if name == b"VmHWM") * 1024
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
