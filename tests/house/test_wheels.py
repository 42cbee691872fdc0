"""Wheels of platforms: tags, contents, bytes, and what they do where nothing else is installed."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from bench import wheels as wheel_runs
from bench.wheels import Wheels, compare
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries import shipped
from engine.kernels.binaries.load import get_linker
from engine.kernels.machine.levels import LEVELS, list_levels, name_machine
from engine.plan.plan import REGIONS, Plan
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.runtime.team import LAUNCH
from engine.tools.dev import ship, wheels
from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed import binary
from tests.support.needs import needs_emulator
from tests.support.places import DRIVERS

FORMS = {"linux": "elf", "darwin": "macho", "win32": "pe"}
EPOCH = "1700000000"


class Made:
    """The sdist of this checkout, and wheels of it that ship a single kernel, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sdist = wheels.make_sdist(folder)
        self._wheels: dict[str, Path] = {}

    def again(self, name: str, where: str) -> Path:
        """A wheel made again, in a folder of its own."""
        return wheels.make_wheel(
            wheels.PLATFORMS[name], self.sdist, self.folder / where, [LAUNCH], epoch=EPOCH
        )

    def wheel(self, name: str) -> Path:
        if name not in self._wheels:
            self._wheels[name] = self.again(name, "first")
        return self._wheels[name]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("wheels"))


# --- what is in them


@pytest.mark.parametrize("name", wheels.PLATFORMS)
def test_a_wheel_has_the_libraries_of_its_platform_alone(
    name: str, made: Made, tmp_path: Path
) -> None:
    path, platform = made.wheel(name), wheels.PLATFORMS[name]
    assert path.name.endswith(f"-py3-none-{platform.tags}.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
        (about,) = (n for n in archive.namelist() if n.endswith("/WHEEL"))
        lines = archive.read(about).decode().splitlines()
    assert "Root-Is-Purelib: false" in lines
    assert {f"Tag: py3-none-{tag}" for tag in platform.tags.split(".")} <= set(lines)
    shipped = {p.name: p for p in (tmp_path / "engine/shipped").iterdir()}
    libraries = [p for n, p in shipped.items() if not n.endswith((".json", ".keys"))]
    assert {p.stem for p in libraries} == {level.name for level in platform.list_levels()} != set()
    for library in libraries:
        actual_content = binary.read(library)
        assert (actual_content.form, actual_content.machine) == (
            FORMS[platform.system],
            platform.arch,
        )
        assert "edgegrad_shipped" in {symbol.lstrip("_") for symbol in actual_content.exports}
        if platform.system == "linux":  # so that glibc's and musl's loaders take it, of any age
            assert not actual_content.needs
            assert not actual_content.libraries


@pytest.mark.parametrize("name", ["linux-aarch64", "macos-arm64", "windows-x86_64"])
def test_a_wheel_is_made_of_the_same_bytes_twice(name: str, made: Made) -> None:
    assert made.wheel(name).read_bytes() == made.again(name, "second").read_bytes()


def test_what_is_made_passes_the_checks(made: Made, tmp_path: Path) -> None:
    wheels.check([made.sdist, *map(made.wheel, wheels.PLATFORMS)])
    whole = made.wheel("linux-x86_64")
    half = tmp_path / whole.name
    half.write_bytes(whole.read_bytes()[:100_000])
    with pytest.raises(EngineError, match="twine"):
        wheels.check([half])


# --- what they do where NumPy alone is installed


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Wheels:
    whole = request.config.option.whole
    models = wheel_runs.MODELS if whole else ["mlp"]
    return Wheels(tmp_path_factory.mktemp("installed"), models, wheel_runs.ARM64)


needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-x86_64-static") or name_machine() != "x86_64" or sys.platform != "linux",
    reason="needs qemu-x86_64-static, of qemu-user-static, on x86-64 Linux",
)
needs_arm64 = pytest.mark.skipif(
    not (wheel_runs.ARM64 / wheel_runs.ARM64_PYTHON).exists(),
    reason="needs build/arm64: tests/arm64.sh --fetch build/arm64",
)


@needs_qemu
def test_models_train_with_numpy_alone(installed: Wheels) -> None:
    """On CPUs of every level, as a process does that compiles the same kernels itself."""
    chosen = [cpu for cpu in wheel_runs.list_cpus() if cpu.arch == name_machine()]
    assert {cpu.level for cpu in chosen} >= {"x86-64-v2", "x86-64-v3"}
    for model in installed.models:
        for cpu in chosen:
            actual_shipped = installed.run_shipped(model, cpu)
            assert (
                compare(actual_shipped, installed.run_compiled(model, cpu), cpu.level) == "equal"
            ), cpu


@needs_qemu
@needs_arm64
def test_models_train_with_numpy_alone_on_arm(installed: Wheels) -> None:
    """The results are the same on every CPU, and equal other CPUs' within rounding."""
    first, *others = (cpu for cpu in wheel_runs.list_cpus() if cpu.arch == "aarch64")
    for model in installed.models:
        actual_shipped = installed.run_shipped(model, first)
        here = installed.run_shipped(model, wheel_runs.list_cpus()[0])
        np.testing.assert_allclose(actual_shipped["losses"], here["losses"], rtol=1e-5)
        for cpu in others:
            assert (
                compare(installed.run_shipped(model, cpu), actual_shipped, cpu.level) == "equal"
            ), cpu


def alone(installed: Wheels, shipped: Path, tmp_path: Path) -> str:
    """The error of a process with NumPy alone, in whose wheel this folder is what is shipped."""
    site = tmp_path / "site"
    shutil.copytree(installed.sites[name_machine()], site)
    wheel_runs.link_numpy(site, Path(np.__file__).parents[1])
    shutil.rmtree(site / "engine/shipped")
    shutil.copytree(shipped, site / "engine/shipped")
    folder = installed.prepare_model("mlp", "alone")
    done = subprocess.run(
        [installed.python.resolve(), "-S", wheel_runs.SCRIPT, folder],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(site)},
    )  # fmt: skip
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    return done.stderr.splitlines()[-1]


@needs_qemu
def test_a_wheel_that_does_not_fit_is_refused(
    made: Made, installed: Wheels, tmp_path: Path
) -> None:
    """By pip; and where somebody has copied it, by what can be done about it."""
    wheel = made.wheel("linux-aarch64" if name_machine() == "x86_64" else "linux-x86_64")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    done = subprocess.run([*command, tmp_path / "pip", wheel], capture_output=True, text=True)
    assert done.returncode
    assert "not a supported wheel" in done.stderr
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "foreign")
    said = alone(installed, tmp_path / "foreign/engine/shipped", tmp_path / "1")
    assert said.startswith("engine.errors.EngineError: no kernels: none are shipped for this CPU")
    assert said.endswith("pip install edgegrad")
    damaged = tmp_path / "damaged"
    shutil.copytree(installed.sites[name_machine()] / "engine/shipped", damaged)
    for path in damaged.glob("*.so"):
        path.write_bytes(path.read_bytes()[::-1])
    said = alone(installed, damaged, tmp_path / "2")
    assert said.startswith("engine.errors.FileError: shipped kernels ")
    assert "install edgegrad again" in said


# --- systems that are not here


def _job(plan: Plan, regions: dict[str, np.ndarray], numbers: dict[str, int]) -> bytes:
    """Return the input of tests/c/shipped.c."""
    words = [len(regions), *(a.nbytes for a in regions.values())]
    steps = [len(plan.steps)]
    for step in plan.steps:
        pairs: list[tuple[int, int]] = []
        for a in step.args:
            b = plan.buffers[a.buffer] if a.buffer >= 0 else None
            pairs.append((-1, 0) if b is None else (REGIONS.index(b.region), b.offset))
        for c in step.consts:
            packed = struct.pack("<d" if isinstance(c, float) else "<q", c)
            pairs.append((-1, *struct.unpack("<q", packed)))
        steps += [numbers[step.kernel], len(pairs), *(word for pair in pairs for word in pair)]
    head, tail = (struct.pack(f"<{len(part)}q", *part) for part in (words, steps))
    return head + b"".join(a.tobytes() for a in regions.values()) + tail


@needs_emulator("windows-x86_64")
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_the_library_for_windows_computes_what_this_system_does(level: str, tmp_path: Path) -> None:
    """To the last bit: a product, a softmax, a map and sums by the kernels of one level."""
    (chosen,) = (known for known in LEVELS if known.name == level)
    if chosen not in list_levels():
        pytest.skip(f"this CPU is older than {level}")
    graph = onnx_io.load(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]> g (float[37,50] a, float[50,29] b)
            => (float[37,29] y, float[37,1] s) {
                c = MatMul(a, b)
                t = Tanh(c)
                y = Softmax<axis = 1>(t)
                e = Exp(t)
                s = ReduceSum<keepdims = 1>(e, axes)
            }""".replace("{\n", "<int64[1] axes = {1}> {\n", 1)
        )
    )
    shapes = {"a": (37, 50), "b": (50, 29)}
    target = chosen.make_target("linux")
    plan = make_plan(graph, shapes, target=target, threads=1)
    rng = np.random.default_rng(0)
    regions = {r: np.zeros(plan.compute_region_bytes(r), np.uint8) for r in REGIONS}
    resolve = get_linker(target).get_addresses
    program = BoundProgram(plan, resolve, {"work": allocate(plan.compute_region_bytes("work"))})
    ports = {port.name: plan.buffers[port.buffer] for port in (*plan.inputs, *plan.outputs)}
    for name, shape in shapes.items():
        program.inputs[name][...] = rng.standard_normal(shape)
        content = program.inputs[name].tobytes()
        regions["io"][ports[name].offset :][: len(content)] = np.frombuffer(content, np.uint8)
    for buffer, content in plan.constants:
        place = plan.buffers[buffer].offset
        regions["const"][place:][: len(content)] = np.frombuffer(content, np.uint8)
    program.run()
    folder = ship.ship_kernels(plan.specs, [chosen], "win32", tmp_path / "shipped").parent
    keys = (folder / shipped.KEYS).read_bytes()
    order = [keys[at : at + 8] for at in range(0, len(keys), shipped.KEY)]
    numbers = {spec.symbol: order.index(shipped.make_spec_key(spec)) for spec in plan.specs}
    (tmp_path / "job").write_bytes(_job(plan, regions, numbers))
    exe = tmp_path / "shipped.exe"
    # Stripped, as builds are: ziglang makes Windows' C library for a minute, once for each kind.
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-O1", "-s"]
    subprocess.run([*compiler, "-o", exe, DRIVERS / "shipped.c"], check=True)
    windows = find_emulator("windows-x86_64")
    assert windows is not None
    windows.run(exe, *(str(tmp_path / n) for n in (f"shipped/{level}.dll", "job", "result")))
    array = np.frombuffer((tmp_path / "result").read_bytes(), np.uint8)
    begin = sum(regions[r].nbytes for r in REGIONS[: REGIONS.index("io")])
    for name, expected in program.outputs.items():
        raw = array[begin + ports[name].offset :][: expected.nbytes]
        np.testing.assert_array_equal(raw.view(np.float32).reshape(expected.shape), expected)
