"""Sizes of clients of a federation: downloads, installed files, memory and time.

client_sizes         pip downloads, for Python 3.11, what each client needs beside Python;
                     installed is what the wheels hold unpacked, without bytecode
client_sizes.memory  five batches are trained on this machine, as a process from its start to its
                     answer: peak memory, and processor time; EDGEGRAD_BENCH_PEERS adds PyTorch

The peer is Flower's own example for embedded devices, with the versions that its pyproject.toml
names; for x86-64 PyPI has torch with CUDA alone, so that it is measured for aarch64.

Source: https://github.com/adap/flower, examples/embedded-devices/pyproject.toml.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measuring import MIB, ROOT, call_fresh, run
from bench.processes import SCRIPTS, find_peer_python
from bench.rows import Bench, Cells, Option
from engine.system.config import switch
from engine.tools.benchmark.workloads import WORKLOADS

STEPS = 5
FLOWER = "flwr>=1.41,<1.42"
# Packages that pip would install for the example on aarch64; torch's own requirements depend on
# the machine, so they are listed here.
PEER = ("torch==2.5.1", "torchvision==0.20.1")
OF_PEER = ("filelock", "typing-extensions", "networkx", "jinja2", "fsspec", "sympy==1.13.1",
           "flwr-datasets[vision]>=0.5.0")  # fmt: skip
TAGS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24",
        "manylinux_2_17", "manylinux2014")  # fmt: skip
TARGETS = {"aarch64": "raspberrypi4", "x86_64": "x86-64-v3"}
FACE = ("mnist.py", "mnist_library.py", "manifest.json", "checkpoint", "mnist.onnx", "libmnist.so")

_CLIENT = """
import sys, numpy as np
sys.path[:0] = sys.argv[1:2]
data = np.load("x.npy"), np.load("y.npy")
"""
_BUILD = """
import mnist
from mnist_federated.device import Device
from mnist_federated.learners import learner_of
from mnist_federated.message import Message
made = mnist.Trainer()
"""
_ENGINE = """
from engine import Trainer
from engine.federated.device import Device
from engine.federated.learners import learner_of
from engine.federated.message import Message
made = Trainer("artifacts", threads=1)
"""
_WORK = """
answer = Device(learner_of(made), data).answer(Message.read("request"))
assert answer.kind == "trained", answer.reason
"""
_APP = "from {}.flower.client import client_app\nclient_app(lambda config: made, lambda c: data)\n"


# --- sizes


def download(packages: Sequence[str], machine: str, folder: Path, *, alone: bool = False) -> None:
    """Let pip download wheels for a machine, with what they depend on unless `alone`."""
    words = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
    words += ["--python-version", "3.11", "--implementation", "cp", "--only-binary=:all:"]
    words += ["--no-deps"] if alone else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    subprocess.run([*command, *words, *packages], check=True)


def measure_wheels(files: Sequence[Path]) -> tuple[int, int]:
    """Bytes of some wheels, and of what they hold unpacked."""
    held = 0
    for path in files:
        with zipfile.ZipFile(path) as archive:
            held += sum(info.file_size for info in archive.infolist())
    return sum(path.stat().st_size for path in files), held


def build_for(target: str, workload: str, out: Path) -> Path:
    """Return a build with the package of devices, for one batch size; returns its folder."""
    from engine.tools import cli

    if not (out / "artifacts").exists():
        (out / "artifacts").mkdir(parents=True)
        WORKLOADS[workload].write(out / "artifacts")
    made = out / target
    words = ["build", str(out / "artifacts"), "--target", target, "--name", "mnist", "--federated"]
    batch = WORKLOADS[workload].x[0]
    if cli.main([*words, "--batch", str(batch), "-o", str(made), "--json"]):
        raise SystemExit("the build failed")
    return made


def build_device_program(made: Path, target: str) -> Path:
    """Return the client in C of a build, with the library inside."""
    from engine.tools.trimmed.link import link
    from engine.tools.trimmed.targets import resolve

    sources, out = [made / "src/mnist.c", made / "src/device.c"], made / "device"
    link(
        [(made / "src/kernels.o").read_bytes()], sources, resolve(target), out,
        kind="executable", include=[made, made / "src"], size=True, threads=False,
    )  # fmt: skip
    return out


def pack_files(made: Path) -> tuple[int, int]:
    """Bytes of the files that Python needs of a build, as a zip file and by themselves."""
    files = [made / name for name in FACE if (made / name).exists()]
    files += sorted((made / "mnist_federated").rglob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "build.zip")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.relative_to(made))
        return path.stat().st_size, sum(file.stat().st_size for file in files)


def make_own_wheel(folder: Path) -> tuple[int, int]:
    """Return the wheel of this package without shipped kernels."""
    from engine.tools.dev import wheels

    return measure_wheels([wheels.make_pure_wheel(wheels.make_sdist(folder), folder)])


def measure(workload: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row a client: MiB of download and installed."""
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_sizes(options.machine, workload, options.wheels or Path(folder, "wheels"))
        yield from ((name, got / MIB, held / MIB) for name, (got, held) in rows.items())


def measure_sizes(machine: str, workload: str, wheels: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes that each client downloads, and those that it has installed."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = tomllib.load(file)["project"]["dependencies"]
    groups: dict[str, Sequence[str]] = {
        "numpy": ("numpy",), "flower": ("numpy", FLOWER), "edgegrad": (*needs, FLOWER),
    }  # fmt: skip
    for name, packages in groups.items():
        place = wheels / machine / name
        if not place.exists():
            download(packages, machine, place)
    package_sizes = {
        n: measure_wheels(sorted((wheels / machine / n).glob("*.whl"))) for n in groups
    }
    with tempfile.TemporaryDirectory() as folder:
        made = build_for(TARGETS[machine], workload, Path(folder))
        build, own = pack_files(made), make_own_wheel(Path(folder))
        program = build_device_program(made, TARGETS[machine])
        alone = program.stat().st_size + (made / "checkpoint").stat().st_size
        rows = {
            "build, C, messages": (alone, alone),
            "build, Python, messages": _sum(build, package_sizes["numpy"]),
            "build, Python, Flower": _sum(build, package_sizes["flower"]),
            "edgegrad, Flower": _sum(own, package_sizes["edgegrad"]),
        }
    if machine == "aarch64":
        place = wheels / machine / "peer"
        if not place.exists():
            download((*OF_PEER, FLOWER, "numpy"), machine, place)
            download(PEER, machine, place, alone=True)
        rows["PyTorch, Flower (its example)"] = measure_wheels(sorted(place.glob("*.whl")))
    return rows


def _sum(*pairs: tuple[int, int]) -> tuple[int, int]:
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)


# --- memory


def prepare(workload: str, folder: Path) -> None:
    """Write artifacts, a build for this machine, a request and data, which the clients below
    read.
    """
    import numpy as np

    from engine import Trainer
    from engine.federated import parameters
    from engine.federated.message import Message, fingerprint

    made = build_for("native", workload, folder)
    build_device_program(made, "native")
    batch = np.load(folder / "artifacts/batch.npz")
    for name in ("x", "y"):
        whole = np.concatenate([batch[name]] * STEPS)
        np.save(folder / f"{name}.npy", whole)
        whole.tofile(folder / f"{name}.bin")
    trainer = Trainer(folder / "artifacts", threads=1)
    trainer.step(batch["x"], batch["y"])  # its kernels are in the cache now
    arrays = parameters.get(trainer, parameters.trainable(trainer))
    config = {"batch-size": len(batch["x"])}
    Message("train", fingerprint(arrays), 0, arrays, config).write(folder / "request")


def list_clients(made: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command of each client and the variables of its environment.

    made: the folder of a build.
    """
    device, build, engine = {"PYTHONPATH": ""}, _CLIENT + _BUILD, _CLIENT + _ENGINE
    python = [sys.executable, "-c"]
    files = ["request", "answer", "x.bin", "y.bin"]
    return {
        "build, C, messages": ([f"{made}/device", f"{made}/checkpoint", *files], device),
        "build, Python, messages": ([*python, build + _WORK, made], device),
        "build, Python, Flower": (
            [*python, build + _APP.format("mnist_federated") + _WORK, made], device
        ),
        "edgegrad, messages": ([*python, engine + _WORK, made], {}),
        "edgegrad, Flower": (
            [*python, engine + _APP.format("engine.federated") + _WORK, made], {}
        ),
    }  # fmt: skip


def measure_memory(workload: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row a client: peak memory, and processor time from start to answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call_fresh(prepare, workload, folder)
        for client, (command, env) in list_clients(str(folder / "native")).items():
            run(command, cwd=folder, **env)  # bytecode and files are in memory after this
            took = run(command, cwd=folder, **env)
            yield client, took.peak / MIB, took.processor
        if switch("BENCH_PEERS"):
            peer = [find_peer_python(), SCRIPTS / "peer.py", "torch", workload, "artifacts", "1"]
            run(peer, f"{STEPS}\n", folder)
            took = run(peer, f"{STEPS}\n", folder)
            yield "PyTorch, without Flower", took.peak / MIB, took.processor


BENCHES = (
    Bench(
        "client_sizes",
        "what a client of a federation downloads and installs, in MiB",
        {name: name for name in WORKLOADS},
        ("client", "download:.2f", "installed:.2f"),
        measure,
        usual=("mlp",),
        options=(
            Option("machine", "aarch64", f"of {', '.join(TARGETS)}"),
            Option("wheels", None, "where downloads stay; default: they go", Path),
        ),
    ),
    Bench(
        "client_sizes.memory",
        "peak memory and processor time of a client of a federation",
        {name: name for name in WORKLOADS},
        ("client", "peak MiB:.1f", "processor s:.2f"),
        measure_memory,
        usual=("mlp",),
    ),
)
