"""Messages in C: the functions and src/device.c of builds, by what Python writes and reads."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.federated.message import Message, fingerprint
from engine.tools.trimmed.generate import RUNTIME
from tests.support.builds import (
    SANITIZE,
    STRICT,
    compile_c,
    make_build,
    make_samples,
    needs_cc,
    run,
    write_types,
)
from tests.support.messages import ARRAYS, DAMAGED, TAKEN, request
from tests.support.places import DRIVERS, GOLDENS

pytestmark = needs_cc
SIZES = (4, 3)  # batches of the build


@pytest.fixture(scope="module")
def folder() -> Path:
    return make_build("mlp", batches=SIZES, federated=True)


@pytest.fixture(scope="module")
def device(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("device") / "device"
    flags = ("-std=c99", *STRICT, *SANITIZE)
    for source in ("mnist.c", "device.c"):
        language = ("-std=c11",) if source == "mnist.c" else flags
        compile_c(
            out.with_name(source + ".o"), *language, f"-I{folder}", "-c", folder / "src" / source
        )
    objects = [out.with_name(name) for name in ("mnist.c.o", "device.c.o")]
    return compile_c(out, *SANITIZE, *objects, folder / "src/kernels.o", "-pthread")


def trained(trainer: Trainer) -> dict[str, Any]:
    return {n: np.array(p.data) for n, p in trainer.state.parameters if p.requires_grad}


def asked(trainer: Trainer, kind: str, config: Mapping[str, Any]) -> Message:
    arrays = trained(trainer)
    return Message(kind, fingerprint(arrays), 2, arrays, config)


class Device:
    """A folder with a checkpoint and data, in which the program runs."""

    def __init__(self, program: Path, folder: Path, count: int) -> None:
        self.program, self.folder = program, folder
        shutil.copy(GOLDENS / "mlp/checkpoint", folder / "checkpoint")
        self.x, self.labels = make_samples(count)
        self.x.tofile(folder / "x.bin")
        self.labels.tofile(folder / "labels.bin")

    def __call__(self, message: Message | bytes, status: int = 0) -> Any:
        """The answer, or what the program says if its status is another."""
        content = message if isinstance(message, bytes) else message.to_bytes()
        (self.folder / "request").write_bytes(content)
        words = ["checkpoint", "request", "answer", "x.bin", "labels.bin"]
        done = subprocess.run(
            [self.program, *words], cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == status, done.stdout + done.stderr
        if status:
            return done.stderr
        actual_content = Message.read(self.folder / "answer")
        if isinstance(message, Message):
            actual_content.check_answer(message)
        assert not list(self.folder.glob("*.tmp"))
        return actual_content


@pytest.fixture
def at(device: Path, tmp_path: Path) -> Device:
    return Device(device, tmp_path, 12)


def test_what_it_trains_is_what_the_engine_trains(at: Device, device: Path, tmp_path: Path) -> None:
    """The same bits: 11 samples are two batches of 4 and one of 3, for which there are plans."""
    at = Device(device, tmp_path, 11)
    trainer = Trainer(GOLDENS / "mlp", threads=1)
    message = asked(trainer, "train", {"local-epochs": 2, "learning-rate": 0.02, "seed": 3})
    actual = at(message)
    trainer.learning_rate = 0.02
    for _ in range(2):
        losses = []
        for start in (0, 4, 8):
            batch = at.x[start : start + 4], at.labels[start : start + 4]
            losses.append(trainer.step(*batch) * len(batch[0]))
    for name, array in trained(trainer).items():
        np.testing.assert_array_equal(actual.arrays[name], array, err_msg=name)
    loss = np.float32(sum(losses) / 11)
    assert actual.metrics == {"num-examples": 11, "train_loss": pytest.approx(loss, rel=1e-7)}


def test_it_evaluates(at: Device) -> None:
    trainer = Trainer(GOLDENS / "mlp", threads=1)
    actual = at(asked(trainer, "evaluate", {}))
    losses = [trainer.evaluate_batch(at.x[s : s + 4], at.labels[s : s + 4])[0] for s in (0, 4, 8)]
    loss = np.float32(sum(x * 4 for x in losses) / 12)
    assert actual.metrics == {"num-examples": 12, "eval_loss": pytest.approx(loss, rel=1e-7)}
    assert not actual.arrays


def test_it_keeps_the_optimizer_if_asked(at: Device) -> None:
    trainer, before = Trainer(GOLDENS / "mlp", threads=1), (at.folder / "checkpoint").read_bytes()
    at(asked(trainer, "train", {}))
    assert (at.folder / "checkpoint").read_bytes() == before
    actual = at(asked(trainer, "train", {"optimizer-state": "keep"}))
    assert (at.folder / "checkpoint").read_bytes() != before
    again = at(Message("train", actual.model, 3, actual.arrays, {"optimizer-state": "keep"}))
    for start in (0, 4, 8, 0, 4, 8):
        trainer.step(at.x[start : start + 4], at.labels[start : start + 4])
    for name, array in trained(trainer).items():
        np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)


def test_what_it_cannot_do_it_says(at: Device) -> None:
    trainer = Trainer(GOLDENS / "mlp", threads=1)
    good = asked(trainer, "train", {})
    first = sorted(good.arrays)[0]
    arrays = dict(good.arrays)
    infinite = {**arrays, first: np.full_like(arrays[first], np.inf)}
    short = {n: a for n, a in arrays.items() if n != first}
    flat = {**arrays, first: arrays[first].reshape(-1, 1, 1)}
    rows: list[tuple[Message, str]] = [
        (Message("train", "0" * 16, 1, arrays), f"of these parameters it has {good.model}"),
        (Message("train", fingerprint(short), 1, short), f"'{first}' is missing"),
        (Message("train", good.model, 1, {**arrays, "a": arrays[first]}), "knows 4 of them"),
        (asked(trainer, "train", {"send": "difference"}), 'send is "difference"; this device'),
        (asked(trainer, "train", {"batch-size": 5}), "batch 5: there are plans for 4, 3"),
        (Message("train", good.model, 1, flat), f"'{first}' has another shape"),
        (Message("train", good.model, 1, infinite), f"'{first}' has values that are not finite"),
        (asked(trainer, "train", {"local-epochs": 0}), "local-epochs: expected a whole number"),
        (asked(trainer, "train", {"local-epochs": 1.5}), "local-epochs: expected a whole number"),
        (asked(trainer, "train", {"learning-rate": 1e30}), "not finite"),
    ]
    for message, said in rows:
        assert said in at(message).reason
    at.labels[5] = 99
    at.labels.tofile(at.folder / "labels.bin")
    assert "label 99" in at(good).reason
    at.labels[:7].tofile(at.folder / "labels.bin")
    assert "labels.bin has 56 bytes" in at(good).reason
    (at.folder / "labels.bin").unlink()
    assert "cannot read labels.bin" in at(good).reason
    at.x[:2].tofile(at.folder / "x.bin")
    at.labels[:2].tofile(at.folder / "labels.bin")
    assert "2 samples are less than a batch" in at(good).reason
    assert "kind 'trained'; expected train or evaluate" in at(
        good.trained(arrays, {"num-examples": 1}), 1
    )


def test_damaged_messages_are_refused(at: Device) -> None:
    for row, (content, _) in DAMAGED.items():
        if row not in TAKEN:
            assert at(content, 1).startswith("request: "), row


def make_reader(out: Path, source: Path) -> Path:
    """Make a program with the reader of messages alone."""
    folders = (f"-I{folder}" for folder in (RUNTIME, DRIVERS, write_types()))
    return compile_c(out, *STRICT, *SANITIZE, "-std=c11", "-Wno-unused-function", *folders, source)


def test_changed_messages_never_crash(tmp_path: Path) -> None:
    program = make_reader(tmp_path / "x", DRIVERS / "messages.c")
    request().write(tmp_path / "message")
    out = run(program, tmp_path / "message", "7", "30000")
    accepted, refused, _ = map(int, re.findall(r"\d+", out))
    assert accepted > 300
    assert refused > 3000


def test_names_are_read_whatever_is_in_them(tmp_path: Path) -> None:
    """Escapes, and letters of three and four bytes."""
    source = tmp_path / "x.c"
    source.write_text(r"""
        #include "messages.h"
        int main(int argc, char **argv)
        {
            static unsigned char bytes[4096];
            char text[64];
            const char *wrong;
            struct request m;
            struct entry t;
            FILE *file = fopen(argv[argc - 1], "rb");
            size_t size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
            wrong = message_open(&m, bytes, size);
            if (wrong) { puts(wrong); return 1; }
            if (!message_find(&m, "a\"\\\n\x01\xe2\x82\xac\xf0\x9f\x98\x80", &t)) return 2;
            if (t.rank != 2 || t.dims[0] != 2 || t.dims[1] != 3 || t.bytes != 24) return 3;
            if (!message_text(&m, "config.text", text, sizeof text)) return 4;
            if (strcmp(text, "\"\xe2\x82\xac\\n\"")) return 5;
            return 0;
        }
    """)
    program = make_reader(tmp_path / "x", source)
    name = 'a"\\\n\x01\u20ac\U0001f600'
    config: dict[str, float | str] = {"rate": -1.5e-7, "text": "\u20ac\n"}
    message = Message("train", fingerprint(ARRAYS), 0, {name: ARRAYS["fc.weight"]}, config)
    content = message.to_bytes()
    (tmp_path / "plain").write_bytes(content)
    header = content[8 : content.index(b"}}", 8)].decode()
    escaped = header.replace("\u20ac", "\\u20ac").replace("\U0001f600", "\\uD83D\\ude00")
    text = escaped.encode() + b"}}"
    (tmp_path / "escaped").write_bytes(len(text).to_bytes(8, "little") + text + content[-24:])
    for file in ("plain", "escaped"):
        run(program, tmp_path / file)


def test_numbers_are_read_and_written_to_the_last_bit(tmp_path: Path) -> None:
    """Without operations on double: what a small CPU reads is what Python wrote, and back."""
    source = tmp_path / "x.c"
    source.write_text(r"""
        #include "messages.h"
        int main(void)
        {
            char line[128], text[40];
            float value;
            while (fgets(line, sizeof line, stdin)) {
                uint32_t word;
                line[strcspn(line, "\n")] = 0;
                if (!read_number(line, &value)) { puts("no"); continue; }
                struct text t = {text, sizeof text, 0};
                put_float(&t, value);
                text[t.used] = 0;
                memcpy(&word, &value, sizeof word);
                printf("%08x %s\n", word, text);
            }
            return 0;
        }
    """)
    program = make_reader(tmp_path / "x", source)
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 32, 20_000, np.uint32)
    floats = bits.view(np.float32)
    floats = floats[np.isfinite(floats) & (np.abs(floats) >= np.finfo(np.float32).tiny)]
    plain = np.array([0, -0.0, 1, 10, 0.1, 1e10, 9.9999999e9, 3.4e38], np.float32)
    floats = np.concatenate([floats, plain])
    numbers = [repr(float(x)) for x in floats]
    refused = ["", "-", ".", "1e", "1e+", "nan", "Infinity", "1e39", "-4e38", "0x1", "1 ", "1.2.3"]
    small = ["1e-50", "-1e-46", "0e99999", "1e-99999"]
    lines = "\n".join([*numbers, *refused, *small]) + "\n"
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()
    assert rows[len(numbers) : -len(small)] == ["no"] * len(refused)
    assert [np.float32(row.split()[1]) for row in rows[-len(small) :]] == [0.0] * len(small)
    for value, row in zip(floats, rows, strict=False):
        word, text = row.split()
        assert int(word, 16) == value.view(np.uint32), value
        assert np.float32(float(text)).view(np.uint32) == value.view(np.uint32), value
