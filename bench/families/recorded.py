"""The models that tests train without PyTorch: as different as they can be, by all exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

DATA = Path(__file__).parents[2] / "tests" / "data" / "families"
SAMPLED = (  # these the tests always train
    "bert-old-14-train",
    "box_head-new-18-train",
    "conv_lstm-old-14-train",
    "coupling_flow-old-17-eval-folded",
    "gpt2-new-18-train",
    "graph_attention-new-18-train",
    "lstm_tagger-old-17-eval-folded",
    "mixture_of_experts-old-14-train",
    "segment_softmax-new-18-train",
    "speaker_embedding-new-18-train",
    "unet-old-14-train",
    "vit-old-17-eval-folded",
    "yolo_head-old-14-train",
)
RECORDED = (
    *SAMPLED,
    "angular_margin-new-18-train",
    "capsules-old-14-train",
    "categorical_values-new-18-train",
    "coat_net-new-18-train",
    "conditional_random_field-new-18-train",
    "diagonal_state_space-old-14-train",
    "diffusion_transformer-new-18-train",
    "embedding_bag-old-14-train",  # a documented limit
    "falcon-old-17-eval-folded",
    "fast_fourier-new-18-train",
    "free_anchors-new-18-train",
    "graph_maximum-old-17-eval-folded",
    "hash_grid-new-18-train",
    "llama-new-18-train",
    "oblivious_trees-new-18-train",
    "optimal_transport-new-18-train",
    "retention-old-14-train",
    "routed_experts-old-14-train",
    "selective_scan-new-18-train",
    "shifted_relative-old-14-train",
    "spline_flow-new-18-train",
    "style_generator-new-18-train",
    "t5-old-14-train",
    "tab_net-old-14-train",
    "unet3d-old-17-eval-folded",
    "wave_operator-new-18-train",
)


def record_families(folder: Path) -> None:
    """Keep the models and what their steps gave, without the exporter's traces of source lines.

    Gradients are kept in float16, which is finer than what their comparison tolerates.
    """
    DATA.mkdir(exist_ok=True)
    for tag in RECORDED:
        model = onnx.load(folder / f"{tag}.onnx")
        for traced in (model, model.graph, *model.graph.node, *model.graph.value_info):
            del traced.metadata_props[:]
        for node in model.graph.node:
            node.ClearField("doc_string")
        onnx.save(model, DATA / f"{tag}.onnx")
        with np.load(folder / f"{tag}.npz") as file:
            data = dict(file)
        for name in [n for n in data if n.startswith("grad.")]:
            data[name] = data[name].astype(np.float16)
        np.savez_compressed(DATA / f"{tag}.npz", **data)
