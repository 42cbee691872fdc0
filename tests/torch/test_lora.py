"""LoRA beside PyTorch on models of the widths of GPT-2 small and Qwen2.5-0.5B, of two layers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts import AdamW, CrossEntropyLoss
from engine.lora import Adapter, Lora
from engine.trainer.trainer import Trainer
from tests.support.places import ROOT

TWIN = ROOT / "tests/torch/lora_twin.py"
LAYERS = {"gpt2": ["c_attn", "c_fc"], "qwen2": ["self_attn.*(q|v)_proj"]}
PEERS = ("transformers", "safetensors")


@pytest.mark.skipif(not all(map(find_spec, PEERS)), reason=f"the twin needs {', '.join(PEERS)}")
@pytest.mark.parametrize("name", LAYERS)
def test_ten_steps_are_those_of_torch(name: str, tmp_path: Path) -> None:
    """The losses; and the adapter's file is the package's, read both ways."""
    command = [sys.executable, str(TWIN), str(tmp_path), name, "large"]
    subprocess.run(command, cwd=tmp_path, check=True)
    trainer = Trainer.from_onnx(
        tmp_path / f"{name}.onnx", CrossEntropyLoss(),
        AdamW(1e-3, eps=1e-8, weight_decay=0.01, adam_mode=0),
        lora=Lora(LAYERS[name], rank=4, alpha=8),
    )  # fmt: skip
    Adapter.load(tmp_path / f"{name}-first").put(trainer)
    with np.load(tmp_path / f"{name}.npz") as data:
        losses = [trainer.step(data["words"], data["labels"]) for _ in data["losses"]]
        assert losses == pytest.approx(data["losses"].tolist(), abs=1e-4)
    from safetensors.numpy import load_file

    mine = Adapter.of(trainer)
    mine.save(tmp_path / "mine")
    found = load_file(tmp_path / "mine/adapter_model.safetensors")
    theirs = load_file(tmp_path / f"{name}-last/adapter_model.safetensors")
    assert found.keys() == theirs.keys()
    for key, value in found.items():
        own = mine.tensors[key.removeprefix("base_model.model.")]
        np.testing.assert_array_equal(value, own)
        np.testing.assert_allclose(value, theirs[key], atol=2e-4)
