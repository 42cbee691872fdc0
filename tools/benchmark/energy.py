"""Energy of the processors of this machine, counted by themselves.

Source: "Power Capping Framework", Documentation/power/powercap/powercap.rst of Linux: a zone of
RAPL has `energy_uj`, a counter of microjoules that starts again at 0 after `max_energy_range_uj`.
Packages are the outermost zones, `intel-rapl:0` and so on, of AMD's processors too; zones inside
them, such as cores and memory controllers, count a part of the same energy.  Many systems let only
root read the counters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # the zones of a package have one more number


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """Counter of one package: its file, and the microjoules after which it starts again at 0."""

    path: Path
    period: int

    def read(self) -> int:
        """Return the microjoules.

        Raises:
            OSError, ValueError: it cannot be read, or holds something else.
        """
        return int(self.path.read_text("ascii"))

    def count_since(self, before: int) -> int:
        """Return the microjoules since it was `before`, if less than a period has passed."""
        passed = self.read() - before
        return passed if passed >= 0 else passed + self.period


def find_counters(root: Path = ROOT) -> tuple[EnergyCounter, ...]:
    """Return the counters of all packages; none if this system has none, or lets nobody read one.

    root: the folder of zones.
    """
    counters = []
    try:
        for zone in sorted(root.iterdir()):
            if _PACKAGE.fullmatch(zone.name):
                period = int((zone / "max_energy_range_uj").read_text("ascii"))
                counters.append(EnergyCounter(zone / "energy_uj", period))
                counters[-1].read()
    except (OSError, ValueError):
        return ()  # without one of the packages the sum would be too small
    return tuple(counters)


class Meter:
    """Runner that takes another's steps, with the energy of the machine during them.

    It counts all that the machine does meanwhile, and what it takes to do nothing.
    """

    def __init__(
        self, run: Callable[[int], list[float]], counters: Sequence[EnergyCounter]
    ) -> None:
        """run: takes so many steps, and returns the seconds of each."""
        self._run, self._counters = run, counters
        self._microjoules, self._steps = 0, 0

    def train(self, steps: int) -> list[float]:
        """Take so many steps; the seconds of each."""
        before = [counter.read() for counter in self._counters]
        seconds = self._run(steps)
        pairs = zip(self._counters, before, strict=True)
        self._microjoules += sum(counter.count_since(value) for counter, value in pairs)
        self._steps += steps
        return seconds

    @property
    def joules(self) -> float:
        """Joules of a step, on average; NaN if nothing is counted."""
        if not self._counters or not self._steps:
            return math.nan
        return self._microjoules / 1e6 / self._steps
