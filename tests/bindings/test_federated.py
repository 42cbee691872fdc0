"""Devices of a federation in other languages: their answers, and messages they refuse."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.federated.message import Message, fingerprint
from tests.bindings.packages import make_package
from tests.support.builds import make_samples, needs_cc, run
from tests.support.messages import DAMAGED, TAKEN
from tests.support.needs import needs_cargo, needs_go, needs_java, needs_mono, needs_node
from tests.support.places import BINDINGS, GOLDENS

LANGUAGES = {
    "js": [needs_node],
    "java": [needs_cc, needs_java],
    "rust": [needs_cc, needs_cargo],
    "go": [needs_cc, needs_go],
    "csharp": [needs_cc, needs_mono],
}
OVER_HTTP = {"js", "java"}  # whose libraries have it; the others read and write files
COUNT = 11  # samples: two batches of 4, and 3 that the build has no plans for
OPTIONS = {"local-epochs": 2, "learning-rate": 0.02}


@contextmanager
def serve(requests: Sequence[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield an address that hands out requests one after another, and the answers it was sent."""
    waiting, answers = list(requests), list[bytes]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            content = waiting.pop(0) if waiting else b""
            self.send_response(200 if content else 204)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            answers.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", answers
        finally:
            server.shutdown()
            thread.join()


def list_trained(trainer: Trainer) -> dict[str, Any]:
    return {n: np.array(p.data) for n, p in trainer.state.parameters if p.requires_grad}


def train(trainer: Trainer, x: Any, labels: Any) -> float:
    """Train as the options say; return the mean loss of the last epoch."""
    trainer.learning_rate = OPTIONS["learning-rate"]
    for _ in range(2):
        losses = [float(trainer.step(x[s : s + 4], labels[s : s + 4])) for s in (0, 4)]
    return sum(losses) / 2


@functools.cache
def make_device(language: str) -> tuple[Path, tuple[str | Path, ...], dict[str, str]]:
    """Return a build, the words of a program that is a device with it, and its environment."""
    folder = make_package("mlp", language, "wasm32" if language == "js" else "native")
    out, package, variables = folder / "device", folder / language, dict(os.environ)
    match language:
        case "js":
            return folder, ("node", BINDINGS / "federated.mjs", package), variables
        case "java":
            sources = [*package.rglob("*.java"), BINDINGS / "Federated.java"]
            run("javac", "-J-Xshare:auto", "-Xlint:all", "-Werror", "-d", out, *sources)
            path = f"{out}:{package / 'src/main/resources'}"
            return folder, ("java", "-Xcheck:jni", "-cp", path, "Federated"), variables
        case "rust":
            shutil.copytree(package, out)
            shutil.copy(BINDINGS / "federated.rs", out / "examples")
            variables |= {"LD_LIBRARY_PATH": str(folder), "RUSTFLAGS": "-Dwarnings"}
            words = ("--quiet", "--offline", f"--manifest-path={out / 'Cargo.toml'}")
            run("cargo", "build", *words, "--example", "federated", **variables)
            return folder, (out / "target/debug/examples/federated",), variables
        case "go":
            out.mkdir()
            shutil.copy(BINDINGS / "federated.go", out)
            module = f"go 1.18\n\nrequire mnist v0.0.0\n\nreplace mnist => {package}\n"
            (out / "go.mod").write_text(f"module federated\n\n{module}")
            variables |= {"GOFLAGS": "-mod=mod"}
            variables |= {"GOPROXY": "off", "GOTOOLCHAIN": "local"}
            with contextlib.chdir(out):
                run("go", "build", "-o", out / "federated", **variables)
            return folder, (out / "federated",), variables
    (library,) = package.glob("runtimes/*/native/libmnist.so")
    sources = [*(package / "src").glob("*.cs"), BINDINGS / "Federated.cs"]
    program = folder / "federated.exe"
    run("mcs", "-warn:4", "-warnaserror", f"-out:{program}", *sources)
    return folder, ("mono", program), variables | {"LD_LIBRARY_PATH": str(library.parent)}


def carry_out(language: str, requests: Sequence[Message], files: Path) -> list[Message]:
    """Return the answers of a device to requests, one after another."""
    folder, program, variables = make_device(language)
    words = (*program, folder / "checkpoint", files / "x", files / "labels")
    contents = [each.to_bytes() for each in requests]
    if language in OVER_HTTP:
        with serve(contents) as (address, answers):
            run(*words, address, **variables)
    else:
        (files / "requests").mkdir()
        paths = [files / "requests" / str(i) for i in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        run(*words, files / "requests", **variables)
        answers = [path.with_name(f"{path.name}.answer").read_bytes() for path in paths]
    return [Message.from_bytes(content) for content in answers]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with samples in the files `x` and `labels`."""
    x, labels = make_samples(COUNT)
    x.tofile(tmp_path / "x")
    labels.tofile(tmp_path / "labels")
    return tmp_path


@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=needs) for name, needs in LANGUAGES.items()]
)
def test_a_device_trains_as_the_engine_does(language: str, files: Path) -> None:
    """A round that keeps the state of the optimizer, one after it, an evaluation, one that cannot
    be; and messages that are damaged.
    """
    x, labels = make_samples(COUNT)
    trainer = Trainer(GOLDENS / "mlp", threads=1)
    arrays = list_trained(trainer)
    model = fingerprint(arrays)
    keep = Message("train", model, 0, arrays, {**OPTIONS, "optimizer-state": "keep"})
    expected = train(trainer, x, labels)
    again = Message("train", model, 1, list_trained(trainer), OPTIONS)
    look = Message("evaluate", model, 2, arrays)
    wrong = Message("train", model, 3, arrays, {"batch-size": 5})
    requests = [keep, again, look, wrong]
    actual = carry_out(language, requests, files)
    for answer, request in zip(actual, requests, strict=True):
        answer.check_answer(request)
    assert actual[0].metrics == pytest.approx({"num-examples": 8, "train_loss": expected}, rel=1e-5)
    expected = train(trainer, x, labels)
    assert actual[1].metrics["train_loss"] == pytest.approx(expected, rel=1e-5)
    for name, array in list_trained(trainer).items():
        np.testing.assert_allclose(actual[1].arrays[name], array, rtol=1e-4, atol=1e-6)
    assert actual[2].metrics["num-examples"] == 8
    assert (actual[3].kind, "there are plans for" in actual[3].reason) == ("failed", True)
    check_refusals(language, files)


def check_refusals(language: str, files: Path) -> None:
    """Check that a device refuses all messages that C refuses."""
    folder, program, variables = make_device(language)
    damaged = files / "damaged"
    damaged.mkdir()
    for name, (content, _) in DAMAGED.items():
        (damaged / name).write_bytes(content)
    words = (*program, folder / "checkpoint", files / "x", files / "labels", damaged)
    rows = dict(line.rsplit(": ", 1) for line in run(*words, **variables).splitlines())
    assert {name for name in DAMAGED if rows[name] != "ModelError"} == TAKEN
