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
    file = load_file(tmp_path / "mine/adapter_model.safetensors")
    theirs = load_file(tmp_path / f"{name}-last/adapter_model.safetensors")
    assert file.keys() == theirs.keys()
    for key, value in file.items():
        own = mine.tensors[key.removeprefix("base_model.model.")]
        np.testing.assert_array_equal(value, own)
        np.testing.assert_allclose(value, theirs[key], atol=2e-4)


@pytest.mark.parametrize("lora", [None, Lora(["0"], rank=2)], ids=["whole", "adapters"])
def test_a_module_gets_adapters_and_another_last_layer(lora: Lora | None) -> None:
    """As a model of `from_onnx` does: the adapters are trained, and the new layer beside them."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    trainer = Trainer.from_torch(
        module, torch.zeros(2, 6), CrossEntropyLoss(), AdamW(1e-2), lora=lora, classes=5
    )
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    assert trainer.predict(x).shape == (8, 5)  # type: ignore[union-attr]  # it has one output
    trained = {name for name, p in trainer.state.parameters if p.requires_grad}
    assert trained > {"2.weight", "2.bias"}
    assert ("0.weight" in trained) == (lora is None)
    labels = np.arange(8) % 5
    losses = [trainer.step(x, labels) for _ in range(20)]
    assert losses[-1] < losses[0]
