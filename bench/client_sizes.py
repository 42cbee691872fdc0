"""How small a client of a federation is: what is downloaded and installed, and what it takes.

python -m bench.client_sizes sizes [--machine aarch64|x86_64] [--wheels FOLDER] [WORKLOAD]
python -m bench.client_sizes memory [WORKLOAD]

`sizes` lets pip download, for Python 3.11, what each client needs beside Python; installed is what
the wheels hold unpacked, without bytecode.  `memory` trains five batches on this machine, as a
process from its start to its answer: peak memory, and processor time.  EDGEGRAD_BENCH_PEERS adds
PyTorch.

The peer is Flower's own example for embedded devices, with the versions that its pyproject.toml
names; for x86-64 PyPI has torch with CUDA alone, so that it is measured for aarch64.

Source: https://github.com/adap/flower, examples/embedded-devices/pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from engine.runtime.config import switch

ROOT = Path(__file__).resolve().parent.parent
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
STEPS, MIB = 5, 2**20
FLOWER = "flwr>=1.41,<1.42"
# What pip would install of the example on aarch64; the conditions of torch's own requirements are
# those of this machine for pip, so that these are listed.
PEER = ("torch==2.5.1", "torchvision==0.20.1")
OF_PEER = ("filelock", "typing-extensions", "networkx", "jinja2", "fsspec", "sympy==1.13.1",
           "flwr-datasets[vision]>=0.5.0")  # fmt: skip
TAGS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24",
        "manylinux_2_17", "manylinux2014")  # fmt: skip
TARGETS = {"aarch64": "raspberrypi4", "x86_64": "x86-64-v3"}
FACE = ("mnist.py", "mnist_library.py", "manifest.json", "checkpoint", "mnist.onnx", "libmnist.so")

_PREPARE = """
import pathlib, sys
from bench import client_sizes
client_sizes.prepare(sys.argv[1], pathlib.Path(sys.argv[2]))
"""
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


def size_of(files: Sequence[Path]) -> tuple[int, int]:
    """Bytes of some wheels, and of what they hold unpacked."""
    held = 0
    for path in files:
        with zipfile.ZipFile(path) as archive:
            held += sum(info.file_size for info in archive.infolist())
    return sum(path.stat().st_size for path in files), held


def build_for(target: str, workload: str, out: Path) -> Path:
    """A build with the package of devices, for one batch size; returns its folder."""
    from engine.tools import cli
    from engine.tools.workloads import WORKLOADS

    if not (out / "artifacts").exists():
        (out / "artifacts").mkdir(parents=True)
        WORKLOADS[workload].write(out / "artifacts")
    made = out / target
    words = ["build", str(out / "artifacts"), "--target", target, "--name", "mnist", "--federated"]
    batch = WORKLOADS[workload].x[0]
    if cli.main([*words, "--batch", str(batch), "-o", str(made), "--json"]):
        raise SystemExit("the build failed")
    return made


def device_program(made: Path, target: str) -> Path:
    """The client in C of a build, with the library inside."""
    from engine.tools.trimmed.link import link
    from engine.tools.trimmed.targets import resolve

    sources, out = [made / "src/mnist.c", made / "src/device.c"], made / "device"
    link(
        [(made / "src/kernels.o").read_bytes()], sources, resolve(target), out,
        kind="executable", include=[made, made / "src"], size=True, threads=False,
    )  # fmt: skip
    return out


def packed(made: Path) -> tuple[int, int]:
    """Bytes of the files that Python needs of a build, as a zip file and by themselves."""
    files = [made / name for name in FACE if (made / name).exists()]
    files += sorted((made / "mnist_federated").rglob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "build.zip")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.relative_to(made))
        return path.stat().st_size, sum(file.stat().st_size for file in files)


def own_wheel(folder: Path) -> tuple[int, int]:
    """The wheel of this package without shipped kernels."""
    from engine.tools import wheels

    return size_of([wheels.make_pure_wheel(wheels.make_sdist(folder), folder)])


def sizes(machine: str, workload: str, wheels: Path) -> None:
    """Print a row a client: MiB of download and installed."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = tomllib.load(file)["project"]["dependencies"]
    groups: dict[str, Sequence[str]] = {
        "numpy": ("numpy",), "flower": ("numpy", FLOWER), "edgegrad": (*needs, FLOWER),
    }  # fmt: skip
    for name, packages in groups.items():
        place = wheels / machine / name
        if not place.exists():
            download(packages, machine, place)
    found = {n: size_of(sorted((wheels / machine / n).glob("*.whl"))) for n in groups}
    with tempfile.TemporaryDirectory() as folder:
        made = build_for(TARGETS[machine], workload, Path(folder))
        build, own = packed(made), own_wheel(Path(folder))
        program = device_program(made, TARGETS[machine])
        alone = program.stat().st_size + (made / "checkpoint").stat().st_size
        rows = {
            "build in C, messages": (alone, alone),
            "build from Python, messages": _sum(build, found["numpy"]),
            "build from Python, Flower": _sum(build, found["flower"]),
            "edgegrad, Flower": _sum(own, found["edgegrad"]),
        }
    if machine == "aarch64":
        place = wheels / machine / "peer"
        if not place.exists():
            download((*OF_PEER, FLOWER, "numpy"), machine, place)
            download(PEER, machine, place, alone=True)
        rows["PyTorch, Flower (its example)"] = size_of(sorted(place.glob("*.whl")))
    print(f"| {machine}, {workload} | download | installed |\n|---|---:|---:|")
    for name, (fetched, held) in rows.items():
        print(f"| {name} | {_mib(fetched)} | {_mib(held)} |")


def _sum(*pairs: tuple[int, int]) -> tuple[int, int]:
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)


def _mib(size: int) -> str:
    return f"{size / MIB:.2f} MiB" if size < 10 * MIB else f"{size / MIB:.0f} MiB"


# --- memory


def prepare(workload: str, folder: Path) -> None:
    """Artifacts, a build for this machine, a request and data: what the clients below read."""
    import numpy as np

    from engine import Trainer
    from engine.federated import parameters
    from engine.federated.message import Message, fingerprint

    made = build_for("native", workload, folder)
    device_program(made, "native")
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


def measured(command: Sequence[str], folder: Path, env: dict[str, str], told: str = "") -> str:
    """Peak memory and processor time of a command, which reads `told` from standard input."""
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        process.stdin.write(told.encode())
        process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return f"{usage.ru_maxrss / 1024:.1f} MiB | {usage.ru_utime + usage.ru_stime:.2f} s"


def memory(workload: str) -> None:
    """Print a row a client: peak memory, and processor time from start to answer."""
    device = {**ENV, "PYTHONPATH": ""}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: Linux counts what this one holds as the peak of those it starts.
        words = [sys.executable, "-c", _PREPARE, workload, name]
        subprocess.run(words, check=True, env=ENV, stdout=subprocess.DEVNULL)
        made = str(folder / "native")
        build, engine = _CLIENT + _BUILD, _CLIENT + _ENGINE
        rows = {
            "build in C, messages": (
                [made + "/device", made + "/checkpoint", "request", "answer", "x.bin", "y.bin"],
                device,
            ),
            "build from Python, messages": ([sys.executable, "-c", build + _WORK, made], device),
            "build from Python, Flower": (
                [sys.executable, "-c", build + _APP.format("mnist_federated") + _WORK, made], device
            ),
            "edgegrad, messages": ([sys.executable, "-c", engine + _WORK, made], ENV),
            "edgegrad, Flower": (
                [sys.executable, "-c", engine + _APP.format("engine.federated") + _WORK, made], ENV
            ),
        }  # fmt: skip
        print(f"| {workload} | peak memory | processor time |\n|---|---:|---:|")
        for client, (command, env) in rows.items():
            measured(command, folder, env)  # bytecode and files are in memory after this
            print(f"| {client} | {measured(command, folder, env)} |")
        if peers := switch("BENCH_PEERS"):
            peer = [peers, str(ROOT / "bench/peer.py"), "torch", workload, "artifacts", "1"]
            told = f"{STEPS}\n"
            measured(peer, folder, ENV, told)
            print(f"| PyTorch, without Flower | {measured(peer, folder, ENV, told)} |")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser("python -m bench.client_sizes", description=__doc__)
    parser.add_argument("what", choices=("sizes", "memory"))
    parser.add_argument("workload", nargs="?", default="mlp")
    parser.add_argument("--machine", choices=TARGETS, default="aarch64")
    parser.add_argument("--wheels", type=Path, help="where downloads stay; default: they go")
    given = parser.parse_args()
    if given.what == "memory":
        memory(given.workload)
        return
    with tempfile.TemporaryDirectory() as folder:
        sizes(given.machine, given.workload, given.wheels or Path(folder))


if __name__ == "__main__":
    main()
