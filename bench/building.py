"""Time and peak memory of whole processes that make a trimmed build, with all kernels cached.

    python -m bench.building [WORKLOAD ...]

A workload is one of `engine.tools.workloads`; by default MobileNetV2 and MiniLM, at batch 8.  Peak
memory is that of the largest process, linkers included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.tools.workloads import WORKLOADS

MODELS = ("mobilenet", "minilm")
ROOT = Path(__file__).parent.parent


def run(command: list[str]) -> tuple[float, float, int]:
    """Seconds of the clock, seconds of the processor, and peak MiB of a command."""
    begin = time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    seconds = time.perf_counter() - begin
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def main(argv: list[str]) -> None:
    """Print a row for each model."""
    for name in argv or MODELS:
        with tempfile.TemporaryDirectory() as work:
            folder, out = Path(work) / "artifacts", Path(work) / "out"
            WORKLOADS[name].write(folder)
            words = ["build", str(folder), "--batch", "8", "--name", "net", "--out", str(out)]
            command = [sys.executable, "-m", "engine.tools.cli", *words]
            run(command)  # fills the kernel cache
            seconds, processor, peak = run(command)
            size = (folder / "checkpoint").stat().st_size
            made = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
        print(
            f"{name}: {seconds:.1f} s, of the processor {processor:.1f} s, peak {peak} MiB; "
            f"checkpoint {size / 1e6:.1f} MB, build {made / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
