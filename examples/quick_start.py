"""The quick start: a small classifier as an ONNX model, trained, saved and exported."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgegrad import artifacts
from edgegrad.api import CheckpointState, Module, Optimizer

# A model as an exporter would write it: two layers whose weights have their initial values.
rng = np.random.default_rng(0)
weights = {
    "fc1.weight": rng.standard_normal((32, 20)) / np.sqrt(20),
    "fc1.bias": np.zeros(32),
    "fc2.weight": rng.standard_normal((3, 32)) / np.sqrt(32),
    "fc2.bias": np.zeros(3),
}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["images", "fc1.weight", "fc1.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["output"], transB=1),
    ],
    "classifier",
    [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", 20])],
    [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["batch", 3])],
    [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
onnx.save(model, "forward.onnx")

# Offline, once.
artifacts.generate_artifacts(
    "forward.onnx",
    requires_grad=[*weights],
    loss=artifacts.LossType.CrossEntropyLoss,
    optimizer=artifacts.OptimType.AdamW,
    artifact_directory="artifacts",
)

# On the device: three kinds of images, which differ in their mean.
means = rng.standard_normal((3, 20))
labels = rng.integers(0, 3, 320)
images = (means[labels] + rng.standard_normal((320, 20))).astype(np.float32)

state = CheckpointState.load_checkpoint("artifacts/checkpoint")
module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
optimizer = Optimizer("artifacts/optimizer_model.onnx", module)
before = float(module.eval()(images, labels))

module.train()
for epoch in range(5):
    for part in np.split(rng.permutation(320), 10):
        loss = module(images[part], labels[part])
        optimizer.step()
        module.lazy_reset_grad()
    print(f"epoch {epoch}: loss {float(loss):.3f}")

after = float(module.eval()(images, labels))
CheckpointState.save_checkpoint(state, "artifacts/checkpoint", include_optimizer_state=True)
module.export_model_for_inferencing("inference.onnx", ["output"])
print(f"loss of all images: {before:.3f} before, {after:.3f} after")
assert after < before / 2
