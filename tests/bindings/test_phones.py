"""Devices in Kotlin and JavaScript, the programs of examples/phones, in a federation of Flower."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from engine import CheckpointState
from tests.bindings.packages import make_package
from tests.support.builds import make_samples, needs_cc, run
from tests.support.needs import needs_java, needs_kotlin, needs_node, require_flower
from tests.support.places import GOLDENS, PATHS, ROOT

EXAMPLE = ROOT / "examples" / "phones"
STANDARD_LIBRARY = "/usr/share/java/kotlin-stdlib.jar"
ROUNDS = 3


def start_page(folder: Path) -> list[str | Path]:
    """Return the command of the device in JavaScript, without its samples."""
    package = make_package("mlp", "js", "wasm32")
    (folder / "node_modules").mkdir()
    (folder / "node_modules/mnist").symlink_to(package / "js")
    shutil.copy(EXAMPLE / "device.mjs", folder)
    return ["node", folder / "device.mjs", package / "checkpoint"]


def start_phone(folder: Path) -> list[str | Path]:
    """Return the command of the device in Kotlin, without its samples."""
    package = make_package("mlp", "kotlin", "native")
    classes, sources = folder / "classes", package / "kotlin/src/main"
    run("javac", "-d", classes, *sources.rglob("*.java"), **os.environ)
    words = ("-Werror", "-cp", classes, "-d", classes, EXAMPLE / "Device.kt")
    run("kotlinc", *words, **os.environ)
    path = f"{classes}:{sources / 'resources'}:{STANDARD_LIBRARY}"
    return ["java", "-cp", path, "DeviceKt", package / "checkpoint"]


@needs_cc
@needs_node
@needs_java
@needs_kotlin
def test_phones_and_pages_train_with_flower(tmp_path: Path) -> None:
    """Over HTTP, each on samples of its own: the loss falls, and the result is of both."""
    require_flower()
    commands = {"page": start_page(tmp_path), "phone": start_phone(tmp_path)}
    words = [str(EXAMPLE / "server.py"), str(GOLDENS / "mlp"), "--rounds", str(ROUNDS)]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    with subprocess.Popen(
        [sys.executable, *words, "--port", "0", "--devices", *commands],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        (address,) = re.findall(r"(http://\S+)/NAME", server.stdout.readline())
        devices = []
        for count, (name, command) in zip((8, 16), commands.items(), strict=True):
            files = []
            for part, array in zip(("x", "labels"), make_samples(count), strict=True):
                files.append(tmp_path / f"{name}.{part}")
                array.tofile(files[-1])
            line = [*map(str, [*command, *files]), f"{address}/{name}"]
            devices.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        told = [device.communicate(timeout=120)[0] for device in devices]
        assert server.wait(timeout=60) == 0
    for text in told:  # training and evaluation of each round
        assert text.count("status 200") == 2 * ROUNDS, told
    with open(tmp_path / "runs/1/history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == ROUNDS
    losses = [float(row["eval_loss"]) for row in rows]
    assert losses[-1] < losses[0], rows
    first, last = (
        CheckpointState.load_checkpoint(folder / "checkpoint")
        for folder in (GOLDENS / "mlp", tmp_path / "runs/1")
    )
    for name, parameter in last.parameters:
        assert not np.array_equal(parameter.data, first.parameters[name].data), name
