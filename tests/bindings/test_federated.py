"""Devices of a federation in other languages: answers over HTTP, and messages they refuse."""

from __future__ import annotations

import functools
import http.server
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
from tests.support.messages import DAMAGED
from tests.support.needs import needs_java, needs_node
from tests.support.places import BINDINGS, GOLDENS

LANGUAGES = [
    pytest.param("js", marks=needs_node),
    pytest.param("java", marks=[needs_cc, needs_java]),
]
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
def make_device(language: str) -> tuple[Path, tuple[str | Path, ...]]:
    """Return a build, and the words of a program that is a device with it."""
    if language == "js":
        folder = make_package("mlp", "js", "wasm32")
        return folder, ("node", BINDINGS / "federated.mjs", folder / "js")
    folder = make_package("mlp", "java", "native")
    classes = folder / "classes"
    sources = [*(folder / "java").rglob("*.java"), BINDINGS / "Federated.java"]
    run("javac", "-J-Xshare:auto", "-Xlint:all", "-Werror", "-d", classes, *sources)
    path = f"{classes}:{folder / 'java/src/main/resources'}"
    return folder, ("java", "-Xcheck:jni", "-cp", path, "Federated")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_device_trains_over_http_as_the_engine_does(language: str, tmp_path: Path) -> None:
    """A round that keeps the state of the optimizer, a round after it, one that cannot be."""
    folder, program = make_device(language)
    x, labels = make_samples(COUNT)
    x.tofile(tmp_path / "x")
    labels.tofile(tmp_path / "labels")
    trainer = Trainer(GOLDENS / "mlp", threads=1)
    arrays = list_trained(trainer)
    model = fingerprint(arrays)
    keep = Message("train", model, 0, arrays, {**OPTIONS, "optimizer-state": "keep"})
    expected = train(trainer, x, labels)
    again = Message("train", model, 1, list_trained(trainer), OPTIONS)
    look = Message("evaluate", model, 2, arrays)
    wrong = Message("train", model, 3, arrays, {"batch-size": 5})
    requests = [keep, again, look, wrong]
    files = (folder / "checkpoint", tmp_path / "x", tmp_path / "labels")
    with serve([each.to_bytes() for each in requests]) as (address, answers):
        run(*program, *files, address)
    actual = [Message.from_bytes(content) for content in answers]
    for answer, request in zip(actual, requests, strict=True):
        answer.check_answer(request)
    assert actual[0].metrics == pytest.approx({"num-examples": 8, "train_loss": expected}, rel=1e-5)
    expected = train(trainer, x, labels)
    assert actual[1].metrics["train_loss"] == pytest.approx(expected, rel=1e-5)
    for name, array in list_trained(trainer).items():
        np.testing.assert_allclose(actual[1].arrays[name], array, rtol=1e-4, atol=1e-6)
    assert actual[2].metrics["num-examples"] == 8
    assert (actual[3].kind, "there are plans for" in actual[3].reason) == ("failed", True)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_damaged_message_is_refused(language: str, tmp_path: Path) -> None:
    folder, program = make_device(language)
    for name, (content, _) in DAMAGED.items():
        (tmp_path / name).write_bytes(content)
    printed = run(*program, *[folder / "checkpoint"] * (language == "java"), tmp_path)
    rows = dict(line.rsplit(": ", 1) for line in printed.splitlines())
    taken = {name for name in DAMAGED if rows[name] != "ModelError"}
    assert taken <= {"option huge", "real offsets"}  # in JavaScript numbers are numbers
