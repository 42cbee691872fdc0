"""Sample data for the example: readings of a pump that runs in cycles, and its faults.

`python data.py` writes sensors.csv, an hour without faults, and test.csv, another hour in which
about one reading in five belongs to a fault.  Its column `fault` names the fault, or says "none".
"""

from __future__ import annotations

import csv

import numpy as np

CHANNELS = ("flow", "pressure_in", "pressure_out", "speed", "current", "vibration", "temperature",
            "voltage")  # fmt: skip
FAULTS = ("leak", "blockage", "bearing", "stuck", "sagging")


def readings(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Simulate one reading per second: l/min, bar, bar, 1/min, A, mm/s, degrees Celsius, V."""
    time = np.arange(count)
    cycle = np.clip(1.5 * np.sin(2 * np.pi * time / 97 + rng.uniform(0, 6)), -1, 1)  # fills, drains
    demand = np.sin(2 * np.pi * time / 1321 + rng.uniform(0, 6))
    speed = 1450 + 350 * cycle + 120 * demand
    flow = 0.021 * speed * (1 + 0.1 * demand)
    pressure = 1.5 + 1.1e-6 * speed**2
    current = 1.2 + 0.09 * flow * pressure
    temperature = 35 + 4 * demand + 0.9 * np.convolve(current, np.ones(60) / 60, "same")
    exact = {
        "flow": flow, "pressure_in": 1.2 - 0.008 * flow, "pressure_out": pressure, "speed": speed,
        "current": current, "vibration": 0.6 + 1.6e-9 * speed**3 / 4, "temperature": temperature,
        "voltage": 231 - 0.9 * current,
    }  # fmt: skip
    return {n: v * (1 + 0.01 * rng.standard_normal(count)) for n, v in exact.items()}


def break_down(values: dict[str, np.ndarray], rng: np.random.Generator) -> list[str]:
    """Put faults of 20 to 60 seconds into readings; returns which reading belongs to which."""
    count = len(values["flow"])
    labels = ["none"] * count
    for number, start in enumerate(range(100, count - 100, 200)):
        fault, part = FAULTS[number % len(FAULTS)], slice(start, start + int(rng.integers(20, 61)))
        labels[part] = [fault] * (part.stop - part.start)
        if fault == "leak":
            values["flow"][part] *= 0.8
            values["pressure_out"][part] *= 0.9
        elif fault == "blockage":
            values["flow"][part] *= 0.75
            values["pressure_in"][part] *= 0.85
        elif fault == "bearing":
            values["vibration"][part] += rng.uniform(0.8, 1.6, part.stop - part.start)
            values["current"][part] *= 1.08
        elif fault == "stuck":
            values["speed"][part] = values["speed"][start]
        else:
            values["voltage"][part] *= 0.93
    return labels


def write(path: str, values: dict[str, np.ndarray], faults: list[str] | None = None) -> None:
    """Write readings as CSV, a row a second."""
    columns = [[f"{value:.4g}" for value in values[name]] for name in CHANNELS]
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(CHANNELS if faults is None else (*CHANNELS, "fault"))
        rows.writerows(zip(*columns, *([] if faults is None else [faults]), strict=True))


if __name__ == "__main__":
    write("sensors.csv", readings(3600, np.random.default_rng(1)))
    rng = np.random.default_rng(2)
    broken = readings(3600, rng)
    write("test.csv", broken, break_down(broken, rng))
    print("wrote sensors.csv and test.csv")
