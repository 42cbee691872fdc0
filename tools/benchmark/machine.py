"""Machine of a benchmark: the board, its clock, throttling, threads, versions.

All of it is read from files of the system and from installed packages' metadata.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import engine
from engine.system.installation import (
    ROOT,
    describe_cores,
    describe_versions,
    find_board,
    find_processor,
    read_line,
)

# Bits of `vcgencmd get_throttled`, and what they say of now; 16 bits higher, of the time since the
# start.  Source: Raspberry Pi documentation, "vcgencmd".
THROTTLED = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "hot"}


def describe(kernels: str = "", root: Path = ROOT) -> dict[str, str]:
    """Return the names and values, for people and for comparisons; what the system does not tell is
    left out.

    kernels: the name of the set of kernels that runs.
    root: the root of the file system to read.
    """
    facts = {
        "machine": find_board(root),
        "processor": find_processor(root),
        "architecture": platform.machine(),
        "cores": describe_cores(),
        "memory": _find_memory(root),
        **_find_frequency(root),
        "temperature": _measure_temperature(root),
        "throttling": _find_throttling(root),
        "load": _load(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "edgegrad": engine.__version__,
        **describe_versions(),
        "kernels": kernels,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {name: value for name, value in facts.items() if value}


def _find_memory(root: Path) -> str:
    for line in read_line(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return f"{int(value.split()[0]) / 1024:,.0f} MiB"
    return ""


def _find_frequency(root: Path) -> dict[str, str]:
    """Return the governor, and the frequencies now and at most, each for all kinds of cores."""
    folders = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"))
    governors = {read_line(folder / "scaling_governor") for folder in folders} - {""}

    def format_megahertz(name: str) -> str:
        values = {read_line(folder / name) for folder in folders}
        whole = sorted({int(v) // 1000 for v in values if v.isdecimal()})
        ends = dict.fromkeys((whole[0], whole[-1])) if whole else {}
        return f"{' to '.join(f'{v:,}' for v in ends)} MHz" if ends else ""

    return {
        "governor": ", ".join(sorted(governors)),
        "frequency now": format_megahertz("scaling_cur_freq"),
        "frequency at most": format_megahertz("cpuinfo_max_freq"),
    }


def _measure_temperature(root: Path) -> str:
    """Return the temperature of the hottest zone that the system reports."""
    zones = (root / "sys/class/thermal").glob("thermal_zone*/temp")
    values = [int(text) for zone in zones if (text := read_line(zone)).lstrip("-").isdecimal()]
    return f"{max(values) / 1000:.0f} °C" if values else ""


def _find_throttling(root: Path) -> str:
    """Return whether the machine is held back, by what a Raspberry Pi or an x86-64 says of
    itself.
    """
    program = shutil.which("vcgencmd") if root == ROOT else None
    if program is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            words = [program, "get_throttled"]
            told = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
            return explain_throttled(int(told.stdout.partition("=")[2], 16))
    counts = (root / "sys/devices/system/cpu").glob(
        "cpu[0-9]*/thermal_throttle/core_throttle_count"
    )
    values = [int(text) for path in counts if (text := read_line(path)).isdecimal()]
    return f"{sum(values)} times since the start" if values else ""


def explain_throttled(bits: int) -> str:
    """Return the meaning of the bits of `vcgencmd get_throttled`, as `now: hot; since the start:
    hot`.
    """
    now, before = (
        [name for bit, name in THROTTLED.items() if bits >> (bit + shift) & 1] for shift in (0, 16)
    )
    parts = [f"now: {', '.join(now)}"] * bool(now)
    parts += [f"since the start: {', '.join(before)}"] * bool(before)
    return "; ".join(parts) or "none since the start"


def _load() -> str:
    """Return how many processes wanted a core in the last minute, on average."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
