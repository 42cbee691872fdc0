"""Kinds of files that hold no model: plans, prepared plans, configurations, adapters, messages."""

from __future__ import annotations

import functools
import json
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.checkpoint import safetensors
from engine.errors import PlanError
from engine.federated.message import Message
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.lora import Adapter
from engine.lora.adapter import CONFIG, TENSORS
from engine.plan import plan_file
from engine.tools.actions import run_config
from engine.training import plan_cache
from engine.training.interface import Interface
from tests.fuzz import octets
from tests.fuzz.kind import Kind
from tests.fuzz.models import models

KERNELS = "0123456789abcdef"
_CHECKSUM = 8  # its place in the head of a plan file; it covers everything after it


class _File(Kind):
    """A kind whose input is the content of one file."""

    @functools.cached_property
    def files(self) -> tuple[bytes, ...]:
        """The files that mutations begin with."""
        return self.make()

    def make(self) -> tuple[bytes, ...]:
        """Make these files."""
        raise NotImplementedError

    def read(self, data: bytes) -> None:
        """Read a mutated file."""
        raise NotImplementedError

    def prepare(self) -> None:
        self.begin(random.Random(0))

    def begin(self, rng: random.Random) -> bytearray:
        return bytearray(rng.choice(self.files))

    def change(self, subject: bytearray, rng: random.Random) -> bytearray:
        octets.change(subject, rng)
        return subject

    def run(self, subject: bytearray, rng: random.Random) -> str:
        self.read(bytes(subject))
        return "read"


class Plans(_File):
    """Plan files whose checksum is right."""

    name, plans = "plans", True
    suffix = ".plan"

    def make(self) -> tuple[bytes, ...]:
        made = []
        for model in models()[:2]:
            graph = onnx_io.load(model)
            inputs = graph.inputs.items()
            shapes = {n: tuple(d if isinstance(d, int) else 2 for d in t.shape) for n, t in inputs}
            plan = make_plan(graph, shapes, target=detect_host(), threads=2)
            made.append(plan_file.to_bytes([plan], KERNELS))
        return tuple(made)

    def run(self, subject: bytearray, rng: random.Random) -> str:
        if len(subject) > _CHECKSUM + 4 and rng.random() < 0.95:
            body = zlib.crc32(subject[_CHECKSUM + 4 :])
            struct.pack_into("<I", subject, _CHECKSUM, body)
        for plan in plan_file.from_bytes(bytes(subject), KERNELS):
            str(plan)
        return "verified"


class Prepared(_File):
    """Files of prepared plans, and interfaces of models, which are kept in them."""

    name, plans = "prepared", True

    def make(self) -> tuple[bytes, ...]:
        made = plan_cache.PreparedModels(
            "1", "0", {"00": "training model"}, [("native", "x86-64", 1)]
        )
        records = {"ab" * 32: b"x" * 40, "cd" * 32: b"y" * 3}
        with tempfile.TemporaryDirectory() as folder:
            plan_cache.write_prepared(f"{folder}/{plan_cache.PREPARED}", made, records)
            return (Path(folder, plan_cache.PREPARED).read_bytes(),)

    def read(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, plan_cache.PREPARED).write_bytes(data)
            records = plan_cache.Records(folder)
            records.explain_unusable("00", ("native", "x86-64", 1))
            records.list_kernel_sets("00", 1)
            beside = records.beside
            for name in () if beside is None else beside.list_names():
                records.get(name)


class Configs(Kind):
    """run.toml: its tables and values, or the text of the file."""

    name = "configs"
    suffix = ".toml"

    def begin(self, rng: random.Random) -> bytearray | dict[str, Any]:
        if rng.random() < 0.3:
            config = run_config.make_config(_CONFIG_TABLES, "run.toml")
            return bytearray(run_config.to_toml(config).encode())
        tables: dict[str, Any] = json.loads(json.dumps(_CONFIG_TABLES))
        return tables

    def change(self, subject: Any, rng: random.Random) -> Any:
        if isinstance(subject, bytearray):
            octets.change(subject, rng)
            return subject
        return octets.change_values(subject, rng)

    def run(self, subject: Any, rng: random.Random) -> str:
        tables = subject
        if isinstance(subject, bytearray):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "run.toml")
                path.write_bytes(subject)
                tables = run_config.read(path)
        if not isinstance(tables, dict):
            return "no table"
        config = run_config.make_config(tables, "run.toml")
        if config.model.loss:
            config.make_loss()
        config.make_optimizer()
        config.make_schedule()
        return "read"

    def content(self, subject: Any) -> bytes:
        return bytes(subject) if isinstance(subject, bytearray) else repr(subject).encode()


_CONFIG_TABLES: dict[str, Any] = {
    "model": {"path": "m.onnx", "loss": "cross_entropy", "loss_options": {"label_smoothing": 0.1},
              "train": ["head.*"], "update": {"biases": True, "last": 2},
              "lora": {"match": "attn.*", "rank": 8}, "head": "auto"},
    "data": {"path": "photos", "kind": "images", "validation": 0.25, "batch_size": 8,
             "augment": ["flip"], "options": {"size": 32}},
    "optimizer": {"name": "adamw", "lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1,
                  "groups": [{"match": ["*.bias"], "lr_scale": 2.0}], "clip_grad": 1.0},
    "schedule": {"name": "cosine", "warmup": 10},
    "fit": {"epochs": 3, "metrics": ["accuracy"], "patience": 2, "monitor": "val_loss",
            "mode": "min", "hours": 1.5, "memory_budget": "48 MB", "unfreeze": {"body.*": 2}},
    "output": {"folder": "run", "tensorboard": False},
}  # fmt: skip


class Adapters(_File):
    """Adapters of LoRA: safetensors with their configuration, and `.onnx_adapter`."""

    name = "adapters"

    def make(self) -> tuple[bytes, ...]:
        rng = np.random.default_rng(0)
        tensors = {
            f"a.lora_{side}.weight": rng.standard_normal(shape).astype(np.float32)
            for side, shape in (("A", (2, 6)), ("B", (8, 2)))
        }
        made = Adapter(tensors, 2, 4.0)
        with tempfile.TemporaryDirectory() as folder:
            made.save(f"{folder}/peft")
            made.save(f"{folder}/x.onnx_adapter")
            files = (f"peft/{TENSORS}", f"peft/{CONFIG}", "x.onnx_adapter")
            return tuple(Path(folder, file).read_bytes() for file in files)

    def begin(self, rng: random.Random) -> Any:
        at = rng.randrange(3)
        return at, bytearray(self.files[at])

    def change(self, subject: Any, rng: random.Random) -> Any:
        at, data = subject
        if at == 1 and rng.random() < 0.7:
            try:
                text = json.dumps(octets.change_values(json.loads(bytes(data)), rng))
                return at, bytearray(text.encode())
            except (ValueError, TypeError):
                pass  # no JSON any more, or no value that JSON has
        octets.change(data, rng)
        return at, data

    def run(self, subject: Any, rng: random.Random) -> str:
        at, data = subject
        contents = list(self.files)
        contents[at] = bytes(data)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in zip((TENSORS, CONFIG, "x.onnx_adapter"), contents, strict=True):
                Path(folder, name).write_bytes(content)
            Adapter.load(folder)
            Adapter.load(f"{folder}/x.onnx_adapter")
        return "read"

    def content(self, subject: Any) -> bytes:
        return bytes(subject[1])


class Messages(_File):
    """Messages of a federation, and headers of safetensors by their values."""

    name = "messages"

    def make(self) -> tuple[bytes, ...]:
        arrays: dict[str, Any] = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3)}
        model = "0123456789abcdef"
        return (
            Message("train", model, 3, arrays, {"epochs": 1, "lr": 0.5, "name": "x"}).to_bytes(),
            Message("trained", model, 3, arrays, {}, {"num-examples": 5, "loss": 0.5}).to_bytes(),
            Message("failed", model, 3, reason="no data").to_bytes(),
        )

    def change(self, subject: bytearray, rng: random.Random) -> bytearray:
        if rng.random() < 0.5:
            octets.change(subject, rng)
            return subject
        try:
            (size,) = struct.unpack_from("<Q", subject)
            header = json.loads(bytes(subject[8 : 8 + size]))
            text = json.dumps(octets.change_values(header, rng)).encode()
        except (struct.error, ValueError, TypeError, OverflowError, RecursionError):
            octets.change(subject, rng)
            return subject
        return bytearray(struct.pack("<Q", len(text)) + text + subject[8 + size :])

    def read(self, data: bytes) -> None:
        Message.from_bytes(data)


class Tensors(Messages):
    """Files of safetensors, read as such."""

    name = "safetensors"

    def read(self, data: bytes) -> None:
        safetensors.decode(data, "file")


class Interfaces(_File):
    """Kept interfaces of models, without the seal of their record."""

    name, plans = "interfaces", True

    def make(self) -> tuple[bytes, ...]:
        graphs = [onnx_io.load(model) for model in models()[:2]]
        return tuple(Interface.of(graph, graph, 4096).to_bytes() for graph in graphs)

    def read(self, data: bytes) -> None:
        try:
            Interface.from_bytes(data, 1 << 16)
        except (ValueError, LookupError, TypeError) as error:  # what its reader expects
            raise PlanError(str(error)) from None


READERS: tuple[Callable[[], Kind], ...] = (
    Plans, Prepared, Configs, Adapters, Messages, Tensors, Interfaces,
)  # fmt: skip
