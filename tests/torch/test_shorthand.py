"""Functions that torch's exporter lacks, or gets wrong: outputs and gradients are torch's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from engine.errors import UnsupportedOpError
from engine.trainer.pytorch.export import export
from tests.torch.applied import Applied, export_as_in_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

INDICES = torch.tensor([[0, 2, 1], [3, 3, 0], [6, 1, 1]])


def test_adaptive_pools_of_windows_of_several_lengths(tmp_path: Path) -> None:
    """Of values that are often equal, as after Relu; the first of them has the gradient."""
    f = functional

    def steps(x: Any) -> Any:
        return x.clamp(-0.5, 0.5)

    functions: dict[str, Callable[..., Any]] = {
        "max1": lambda x: f.adaptive_max_pool1d(steps(x.flatten(2)), 11),
        "max2": lambda x: f.adaptive_max_pool2d(steps(x.flatten(2, 3)), (4, 3)),
        "all": lambda x: f.adaptive_max_pool2d(x.flatten(2, 3), (None, 1)),
        "max3": lambda x: f.adaptive_max_pool3d(steps(x), (2, 3, 5)),
        "mean3": lambda x: f.adaptive_avg_pool3d(x, (2, 3, 5)),
        "mean2": lambda x: f.adaptive_avg_pool2d(x.flatten(2, 3), (4, 3)),
    }
    export_as_in_torch(Applied(7, functions), torch.randn(2, 3, 3, 5, 7), tmp_path)


def test_attention_of_any_rank(tmp_path: Path) -> None:
    """Also where what reads it counts on the strides of torch's kernels."""
    attend = functional.scaled_dot_product_attention
    mask = torch.randn(5, 5)
    functions: dict[str, Callable[..., Any]] = {
        "three": lambda x: attend(x[:, 0, 0], x[:, 0, 1], x[:, 1, 0], is_causal=True, scale=0.3),
        "masked": lambda x: attend(
            x[:, 0, 0], x[:, 0, 0], x[:, 0, 1], mask.expand(x.shape[0], 5, 5)
        ),
        "four": lambda x: attend(x[:, 0], x[:, 1], x[:, 0], mask).transpose(1, 2).flatten(2),
        "biased": lambda x: (
            attend(x[:, 0], x[:, 1], x[:, 1], x[:, 0, :1] @ x[:, 0, :1].mT)
            .transpose(1, 2)
            .contiguous()
            .view(-1, 5, 24)
        ),
        "five": lambda x: attend(x, x * 2, x, mask),
        "five masks": lambda x: attend(x, x * 2, x, mask.expand(x.shape[0], 2, 1, 5, 5)),
    }
    export_as_in_torch(Applied(8, functions), torch.randn(2, 2, 3, 5, 8), tmp_path)


def test_queries_whose_keys_are_all_masked_read_nothing(tmp_path: Path) -> None:
    """As in batches that are padded on the left: neither NaN nor the mean of all values."""
    attend = functional.scaled_dot_product_attention
    mask = torch.ones(5, 5).tril().bool()
    mask[:2] = False
    bias = torch.zeros(5, 5).masked_fill(~mask, -torch.inf)
    functions: dict[str, Callable[..., Any]] = {
        "bools": lambda x, keep: attend(x, x * 2, x, mask),
        "floats": lambda x, keep: attend(x, x * 2, x, bias),
        "given": lambda x, keep: attend(x, x, x, keep[:, None, None] & mask),
        "biased": lambda x, keep: attend(
            x, x, x, torch.where(keep[:, None, None] & mask, x[:, :1, :, :5], -torch.inf)
        ),
    }
    keep = torch.tensor([[True] * 5, [False] * 3 + [True] * 2, [False] * 5])
    export_as_in_torch(Applied(8, functions), (torch.randn(3, 2, 5, 8), keep), tmp_path)


@pytest.mark.parametrize("is_causal", [None, False, True])
def test_decoders_take_masks_as_they_are(is_causal: bool | None, tmp_path: Path) -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)
    net = nn.TransformerDecoder(layer, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    if not is_causal:
        mask[0, 2] = 0

    class Decodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, memory: Any) -> Any:
            return self.net(x, memory, tgt_mask=mask, tgt_is_causal=is_causal)

    export_as_in_torch(Decodes(), (torch.randn(3, 4, 8), torch.randn(3, 6, 8)), tmp_path)


def test_distances_signs_and_selections(tmp_path: Path) -> None:
    edges = torch.tensor([-1.0, -0.3, 0.0, 0.4, 2.0])
    functions: dict[str, Callable[..., Any]] = {
        "euclidean": lambda x, i: torch.cdist(x, x[:, :2]),  # 0 for a row and itself
        "manhattan": lambda x, i: torch.cdist(x, x[:, :2] * 2, p=1),
        "largest": lambda x, i: torch.cdist(x, x[:, :2] * 2, p=float("inf")),
        "signs": lambda x, i: torch.copysign(x, x.flip(1)) + x.copysign(x.relu() * -1),
        "buckets": lambda x, i: x * torch.bucketize(x, edges, right=True),
        "left buckets": lambda x, i: x * torch.bucketize(x, edges),
        "places": lambda x, i: x * torch.searchsorted(edges, x, side="right"),
        "rows": lambda x, i: x * torch.searchsorted(x.sort(-1)[0].detach(), x.detach()),
        "third": lambda x, i: x.kthvalue(3, 1)[0] * x.kthvalue(3, 1, keepdim=True).indices[:, 0],
        "middle": lambda x, i: x.median(-1).values + x[0, 0].median(),
        "extremes": lambda x, i: x * (x.amax() - torch.amin(x)) + torch.aminmax(x).max,
        "extremes of rows": lambda x, i: x * torch.aminmax(x, dim=1, keepdim=True).min,
        "class losses": lambda x, i: (
            x * functional.cross_entropy(x[:, 0], i[:, 0], reduction="none").sum()
        ),
        "likelihoods": lambda x, i: (
            x
            * functional.nll_loss(
                x[:, 0], i[:, 0], torch.linspace(0.5, 2, 7), reduction="none"
            ).sum()
        ),
        "means": lambda x, i: x[:, 0].scatter_reduce(1, i, x[:, 1, :3], "mean"),
        "other means": lambda x, i: x[:, 0].scatter_reduce(
            1, i, x[:, 1, :3], "mean", include_self=False
        ),
    }
    example = (torch.randn(3, 4, 7), INDICES)
    export_as_in_torch(Applied(7, functions), example, tmp_path)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: torch.linalg.svdvals(x.mT @ x), "its exporter has no ONNX function for aten._"),
        (lambda x: x * len(torch.nonzero(x > 0)) if x.sum() > 0 else x, "the module decides by"),
    ],
)
def test_what_torch_cannot_export_is_named_with_its_line(
    function: Any, named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOpError, match=named) as caught:
        export(Applied(4, {"y": function}), torch.randn(3, 4), tmp_path / "net.onnx")
    assert re.search(r"\((applied|test_shorthand)\.py, line \d+\); ", str(caught.value))


def test_elements_that_are_put_and_running_extremes(tmp_path: Path) -> None:
    """Of values that are often equal; the last of them has the gradient."""
    places = torch.tensor([[0, 5], [-1, 7]])
    functions: dict[str, Callable[..., Any]] = {
        "largest": lambda x: x.cummax(1)[0] + torch.cummax((2 * x).round(), -1).indices * x,
        "smallest": lambda x: torch.cummin(x.relu(), dim=2).values,
        "put": lambda x: x.put(places, x[0, :2, :2] * 2) * x,
        "added": lambda x: x.put(torch.tensor([0, 0, 3]), x[0, 0, :3], accumulate=True),
        "in place": lambda x: (x * 2).put_(places, x[0, :2, :2]),
    }
    export_as_in_torch(Applied(6, functions), torch.randn(3, 4, 6), tmp_path)


def test_losses_covariances_and_stable_sorts(tmp_path: Path) -> None:
    f, labels, weight = functional, torch.tensor([0, 2, 5]), torch.tensor([1.0, 2.0, 0.5, 1.0])
    functions: dict[str, Callable[..., Any]] = {
        "extremes": lambda x: torch.fmax(x, x.flip(1)) + torch.fmin(x, x * 2),
        "products": lambda x: x.cumprod(1) + torch.cumprod(x.round(), -1) * x,
        "sorts": lambda x: torch.sort(x, dim=1, stable=True)[0] * x.argsort(stable=True),
        "covariances": lambda x: torch.cov(x[0]) + torch.corrcoef(x[1]) + torch.cov(x[0, 0]),
        "divided": lambda x: f.avg_pool2d(x.unsqueeze(1), 2, 1, 1, divisor_override=3),
        "smoothed": lambda x: f.cross_entropy(
            x[:3, 0], labels, label_smoothing=0.1, ignore_index=2
        ),
        "soft": lambda x: f.cross_entropy(x[:, :, 0], x[:, :, 1].softmax(1), reduction="none"),
        "weighted": lambda x: f.cross_entropy(
            x, x[:, 0].unsqueeze(1).expand(-1, 6, 6).argmax(1) % 4, weight, label_smoothing=0.2
        ),
        "normal": lambda x: f.gaussian_nll_loss(x[:, 0], x[:, 1], x[:, 2].exp(), full=True),
    }
    export_as_in_torch(Applied(6, functions), torch.randn(3, 4, 6), tmp_path)


def test_integers_beside_floats(tmp_path: Path) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "difference": lambda x, i: x * (1.0 - i),
        "small": lambda x, i: x * torch.rsub(i.to(torch.int32), 0.5, alpha=2),
        "integers": lambda x, i: x * (1 - i),
        "quotient": lambda x, i: x * (i // 1.5) + x * torch.floor_divide(i, -0.7),
        "of a float": lambda x, i: x * (7.5 // (i + 1)),
        "signs": lambda x, i: x * torch.copysign(i, -2.0) + torch.copysign(x, -0.0),
    }
    export_as_in_torch(Applied(3, functions), (torch.randn(3, 3), INDICES), tmp_path)


def test_pictures_scaled_with_their_corners_in_place(tmp_path: Path) -> None:
    def scale(x: Any, by: Any, mode: str, is_aligned: bool = True) -> Any:
        return functional.interpolate(x, scale_factor=by, mode=mode, align_corners=is_aligned)

    functions: dict[str, Callable[..., Any]] = {
        "linear": lambda x: scale(x[:, 0], 1.7, "linear"),
        "larger": lambda x: scale(x, 1.7, "bilinear"),
        "smaller": lambda x: scale(x, (0.6, 2.3), "bilinear"),
        "cubic": lambda x: scale(x, 1.7, "bicubic"),
        "three": lambda x: scale(x.unsqueeze(1), 1.3, "trilinear"),
        "half pixels": lambda x: scale(x, 1.7, "bilinear", is_aligned=False),
    }
    net = Applied(9, functions, up=nn.Upsample(scale_factor=1.6, mode="bilinear"))
    net.functions["module"] = net.parts["up"]
    export_as_in_torch(net, torch.randn(2, 3, 7, 9), tmp_path)


def test_modules_that_convert_their_parts_to_what_they_are(tmp_path: Path) -> None:
    class Converts(nn.Module):
        def __init__(self, dtype: Any) -> None:
            super().__init__()
            self.a, self.dtype = nn.Linear(4, 4), dtype

        def forward(self, x: Any) -> Any:
            self.a = self.a.to(self.dtype)
            return self.a.to("cpu").type(self.dtype)(x.to(self.dtype)).float()

    export_as_in_torch(Converts(torch.float32), torch.randn(3, 4), tmp_path)
    with pytest.raises(UnsupportedOpError, match=r"'weight' from torch.float32 to torch.float64"):
        export(Converts(torch.float64), torch.randn(3, 4), tmp_path / "net.onnx")


def test_distributions_whose_parameters_have_no_values_yet(tmp_path: Path) -> None:
    """By default, torch looks at the values of parameters to see if they are allowed."""
    d = torch.distributions

    def compare(x: Any) -> Any:
        ones = d.Dirichlet(torch.ones_like(x))
        return d.kl_divergence(d.Dirichlet(x.exp()), ones)

    functions: dict[str, Callable[..., Any]] = {
        "drawn": lambda x: d.Normal(x[:, 0], x[:, 1].exp()).rsample(),
        "normal": lambda x: d.Normal(x[:, 0], x[:, 1].exp()).log_prob(x[:, 2]),
        "student": lambda x: d.StudentT(x[:, 0].exp() + 2, x[:, 1], x[:, 2].exp()).log_prob(
            x[:, 3]
        ),
        "beta": lambda x: d.Beta(x[:, 0].exp(), x[:, 1].exp()).log_prob(x[:, 2].sigmoid()),
        "mixed": lambda x: d.MixtureSameFamily(
            d.Categorical(logits=x[:, 0]), d.Normal(x[:, 1], x[:, 2].exp())
        ).log_prob(x[:, 3, 0]),
        "apart": compare,
    }
    export_as_in_torch(Applied(6, functions), torch.randn(3, 4, 6), tmp_path)
    assert d.Distribution._validate_args


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions(dtype: Any, tmp_path: Path) -> None:
    normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)

    def turn(x: Any) -> Any:
        """A large rotation, as of torch.nn.utils.parametrizations.orthogonal."""
        return torch.matrix_exp(8 * (x[..., :4] - x[..., :4].mT))

    functions: dict[str, Callable[..., Any]] = {
        "errors": lambda x: torch.erfinv(x.tanh()) + torch.erfinv((x * 2).tanh()),
        "quantiles": lambda x: normal.icdf(x.sigmoid()) + (x.tanh() * 1).erfinv_(),
        "edges": lambda x: x.sign().erfinv().clamp(-9, 9) * x,
        "digamma": lambda x: torch.digamma(x.exp()) + torch.special.psi(x * 3) / 16,
        "gamma": lambda x: torch.lgamma(x.exp()) + (x * 3).lgamma() / 16 + (9e4 * x).lgamma() / 1e6,
        "exponential": lambda x: torch.matrix_exp(x[..., :4] / 4) + turn(x) / 2,
    }
    net = Applied(6, functions).to(dtype)
    export_as_in_torch(net, torch.randn(3, 4, 6, dtype=dtype), tmp_path)


def test_rows_that_a_mask_selects_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """Where what is computed of them is not known; the nodes after them are not listed."""
    net = Applied(4, {"y": lambda x: x[x[..., 0] > 0].sort(0)[0].sum(0) * x})
    with pytest.raises(UnsupportedOpError, match=r"NonZero .*\nx\[mask\] has as many") as caught:
        export(net, torch.randn(3, 5, 4), tmp_path / "net.onnx")
    assert "is not known\n" not in str(caught.value)


def test_statistics_over_all_batches_are_refused(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(4, momentum=None)
    net = nn.Sequential(nn.Linear(4, 4), norm).train()
    with pytest.raises(UnsupportedOpError, match="BatchNorm1d '1' has momentum=None"):
        export(net, torch.randn(3, 4), tmp_path / "net.onnx")
    norm.eval()
    export_as_in_torch(net, torch.randn(3, 4), tmp_path)
