"""Modules of PyTorch become trainable models, train as in PyTorch, and take their weights back."""

from __future__ import annotations

import gc
import re
from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from engine.artifacts import SGD, CrossEntropyLoss, MSELoss
from engine.errors import (
    DTypeError,
    FileError,
    InputError,
    ModelError,
    ModelWarning,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
)
from engine.graphs.offline import support
from engine.graphs.offline.support import Support
from engine.trainer.pytorch.export import Exported, export, to_torch
from engine.trainer.trainer import Trainer
from tests.torch.record import Net, torch_steps

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Returns(nn.Module):
    """Returns what a function makes of its input and of a linear layer's output."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.head, self.make = nn.Linear(4, 2), make

    def forward(self, x: Any) -> Any:
        return self.make(x, self.head(x))


def trainer_of(exported: Exported) -> Trainer:
    return Trainer.from_onnx(
        exported.model, CrossEntropyLoss(), SGD(lr=0.1), train=exported.train,
        frozen_batch_norm=exported.frozen_batch_norm, threads=1,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_module_trains_as_in_torch_and_takes_its_weights_back(tmp_path: Path, rows: int) -> None:
    """Three steps on batches of a size that the example did not have, then the parameters and the
    running statistics are torch's."""
    net = Net().train()
    exported = export(net, torch.randn(rows, 3, 8, 8), tmp_path / "net.onnx")
    assert (exported.inputs, exported.outputs) == (("image",), ("output",))
    assert exported.train == tuple(n for n, _ in net.named_parameters())
    assert exported.difference < 1e-5
    assert exported.frozen_batch_norm is None
    x, labels = torch.randn(7, 3, 8, 8), torch.randint(0, 4, (7,))
    trainer, mine = trainer_of(exported), Net()
    results = [trainer.step(x.numpy(), labels.numpy()) for _ in range(3)]
    left = to_torch(trainer.state, mine)
    assert left == ["norm.num_batches_tracked"]
    assert results == pytest.approx(torch_steps(net, x, labels), abs=1e-5)
    for (name, a), (_, b) in zip(mine.named_parameters(), net.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, msg=name)
    torch.testing.assert_close(mine.norm.running_mean, net.norm.running_mean)
    # The moving variance is the batch's in ONNX, and n / (n - 1) times it in torch; n = 252.
    torch.testing.assert_close(mine.norm.running_var, net.norm.running_var, rtol=1e-3, atol=0)
    scores = trainer.predict_batch(x.numpy())["output"]
    np.testing.assert_allclose(scores, mine.eval()(x).detach().numpy(), atol=1e-5)


def test_the_module_and_the_random_numbers_stay_as_they_were(tmp_path: Path) -> None:
    net = Net(0.5).eval()
    net.norm.train()
    values = {n: v.clone() for n, v in net.state_dict().items()}
    before = torch.get_rng_state()
    export(net, torch.randn(2, 3, 8, 8, generator=torch.Generator()), tmp_path / "net.onnx")
    assert torch.equal(before, torch.get_rng_state())
    assert (net.training, net.norm.training, net.head.training) == (False, True, False)
    assert all(torch.equal(v, values[n]) for n, v in net.state_dict().items())
    assert "forward" not in vars(net)


@pytest.mark.parametrize("trains", [True, False])
def test_dropout_drops_whatever_mode_the_module_is_in(tmp_path: Path, trains: bool) -> None:
    """`from_pretrained` and `eval()` leave modules in evaluation mode; they train all the same."""
    net = Net(0.5).train(trains)
    trainer = trainer_of(export(net, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx"))
    x, labels = torch.randn(4, 3, 8, 8).numpy(), np.zeros(4, np.int64)
    losses = {trainer.accumulate(x, labels) for _ in range(4)}
    assert len(losses) > 1
    assert trainer.evaluate_batch(x, labels)[0] == trainer.evaluate_batch(x, labels)[0]


def test_parameters_that_need_no_gradient_are_not_trained(tmp_path: Path) -> None:
    net = Net().train()
    for p in (*net.conv.parameters(), *net.norm.parameters()):
        p.requires_grad = False
    net.norm.eval()
    exported = export(net, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx")
    assert exported.train == ("head.weight", "head.bias")
    assert exported.frozen_batch_norm == ("norm.running_mean",)
    x, labels = torch.randn(6, 3, 8, 8), torch.randint(0, 4, (6,))
    trainer = trainer_of(exported)
    results = [trainer.step(x.numpy(), labels.numpy()) for _ in range(3)]
    assert results == pytest.approx(torch_steps(net, x, labels), abs=1e-5)


class Tied(nn.Module):
    """A language model whose embedding and head share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.table(tokens))


def test_a_weight_with_two_names_is_one(tmp_path: Path) -> None:
    net = Tied()
    tokens, labels = torch.arange(6), torch.arange(1, 7)
    exported = export(net, tokens, tmp_path / "tied.onnx")
    assert len(exported.train) == 1
    trainer, mine = trainer_of(exported), Tied()
    results = [trainer.step(tokens.numpy(), labels.numpy()) for _ in range(3)]
    assert results == pytest.approx(torch_steps(net, tokens, labels), abs=1e-5)
    assert to_torch(trainer.state, mine) == []
    torch.testing.assert_close(mine.head.weight, net.head.weight)


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x, y: y, ["output"]),
        (lambda x, y: (y, y + 1), ["output_0", "output_1"]),
        (lambda x, y: {"logits": y, "none": None, "more": {"a": y + 1, "b": [y + 2]}},
         ["logits", "more.a", "more.b.0"]),
        (lambda x, y: OrderedDict(x=y), ["x_output"]),
        (lambda x, y: {"head.bias": y, "linear": y * 2}, ["head.bias_output", "linear"]),
        (lambda x, y: Pair(y, y * 2), ["first", "second"]),
        (lambda x, y: {"a": y, "b": y, "c": x, "d": x}, ["a", "b", "c", "d"]),
    ],
)  # fmt: skip
def test_outputs_have_the_names_of_keys(tmp_path: Path, make: Any, names: list[str]) -> None:
    exported = export(Returns(make), torch.randn(2, 4), tmp_path / "net.onnx")
    assert exported.outputs == tuple(names)
    trainer = Trainer.from_onnx(exported.model, MSELoss(), loss_inputs=names[:1], threads=1)
    assert trainer.outputs == names
    assert [value.name for value in onnx.load(exported.model).graph.input] == ["x"]


@pytest.mark.parametrize(
    "example",
    [
        {"image": torch.ones(2, 3, 8, 8), "scale": torch.ones(2, 1)},
        (torch.ones(2, 3, 8, 8), torch.ones(2, 1)),
        {"image": np.ones((2, 3, 8, 8), np.float32), "scale": np.ones((2, 1), np.float32)},
    ],
    ids=["names", "places", "arrays"],
)
def test_arguments_by_name_and_by_place(tmp_path: Path, example: Any) -> None:
    exported = export(Net(), example, tmp_path / "net.onnx")
    assert exported.inputs == ("image", "scale")


def test_an_argument_may_be_named_as_a_parameter_or_a_buffer(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)
            self.register_buffer("x", torch.full((4,), 2.0))
            self.register_buffer("scale_input", torch.ones(3))

        def forward(self, x: Any, scale: Any) -> Any:
            return self.head(x * self.x * self.scale) * scale + self.scale_input

    net, x, scale = Named().train(), torch.randn(5, 4), torch.ones(5, 1)
    exported = export(net, (x, scale), tmp_path / "net.onnx")
    assert exported.inputs == ("x_input", "scale_input_")
    assert exported.train == ("scale", "head.weight", "head.bias")
    trainer, labels = trainer_of(exported), torch.arange(5) % 3
    results = [trainer.step(x.numpy(), scale.numpy(), labels.numpy()) for _ in range(2)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for loss in results:
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(net(x, scale), labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), abs=1e-5)


def test_axes_of_any_length(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, tokens: Any, mask: Any) -> Any:
            return (self.table(tokens) * mask[..., None]).sum(1)

    axes = {"tokens": {1: "length"}, "mask": {1: "length"}}
    example = {"tokens": torch.ones(2, 5, dtype=torch.long), "mask": torch.ones(2, 5)}
    exported = export(Sums(), example, tmp_path / "sums.onnx", axes=axes)
    trainer = trainer_of(exported)
    for length in (3, 8):
        predicted = trainer.predict_batch(np.ones((4, length), np.int64), np.ones((4, length)))
        assert predicted["output"].shape == (4, 4)
    with pytest.raises(
        NameNotFoundError, match="axes: there is no input 'token'; nearest: 'tokens'"
    ):
        export(Sums(), example, tmp_path / "sums.onnx", axes={"token": {1: "length"}})


class Positions(nn.Module):
    """Adds a table of 16 positions, so that the length has a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(10, 4), nn.Parameter(torch.randn(16, 4))

    def forward(self, tokens: Any, mask: Any) -> Any:
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        return (x * mask[..., None]).sum(1)


def test_axes_may_have_limits_and_have_the_names_that_were_given(tmp_path: Path) -> None:
    axes = {"tokens": {1: "length"}, "mask": {1: "length"}}
    example = {"tokens": torch.ones(2, 5, dtype=torch.long), "mask": torch.ones(2, 5)}
    exported = export(Positions(), example, tmp_path / "places.onnx", axes=axes)
    graph = onnx.load(exported.model).graph
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (*graph.input, *graph.output)}  # fmt: skip
    assert dims["tokens"] == dims["mask"] == ["batch", "length"]
    assert dims["output"] == ["batch", 4]
    trainer = trainer_of(exported)
    assert trainer.predict_batch(np.ones((3, 16), np.int64), np.ones((3, 16)))


def test_modules_of_float64(tmp_path: Path) -> None:
    net = Net().double().train()
    x, labels = torch.randn(5, 3, 8, 8).double(), torch.randint(0, 4, (5,))
    trainer = trainer_of(export(net, x, tmp_path / "net.onnx"))
    results = [trainer.step(x.numpy(), labels.numpy()) for _ in range(3)]
    # The learning rate is a float32.
    assert results == pytest.approx(torch_steps(net, x, labels), abs=1e-8)


class Wide(nn.Module):
    """A float32 network with a branch of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.wide = nn.Linear(4, 6), nn.Linear(6, 3).double()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.body(x))
        return self.head(h) + self.wide(h.double()).float()


def test_modules_of_float32_and_float64(tmp_path: Path) -> None:
    net, mine = Wide(), Wide()
    x, labels = torch.randn(8, 4), torch.randint(0, 3, (8,))
    trainer = Trainer.from_torch(
        net, x[:2], CrossEntropyLoss(), SGD(lr=0.125, clip_grad=0.25), folder=tmp_path, threads=1
    )
    descent = torch.optim.SGD(net.parameters(), 0.125)
    for _ in range(4):
        loss = nn.functional.cross_entropy(net(x), labels)
        descent.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        descent.step()
        assert trainer.step(x.numpy(), labels.numpy()) == pytest.approx(loss.item(), abs=1e-6)
    assert trainer.to_torch(mine) == []
    for (name, a), (_, b) in zip(mine.named_parameters(), net.named_parameters(), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.head(x) if x.sum() > 0 else x


class Three(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x).reshape(3, 4)


def frozen(net: nn.Module) -> nn.Module:
    return net.requires_grad_(False)


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("net", "example", "error", "message"),
    [
        (3, X, InputError, "expected a torch.nn.Module, got int"),
        (nn.Linear(4, 4, device="meta"), X, InputError, r"'weight' is on the device meta.*\.to\("),
        (nn.Linear(4, 4).half(), X, DTypeError, r"'weight' is torch.float16.*module\.float\(\)"),
        (frozen(nn.Linear(4, 4)), X, InputError, "no parameter of the module requires a gradient"),
        (Branches(), X, UnsupportedOpError, "data-dependent.*write it with torch.where"),
        (Three(4, 4), X, UnsupportedOpError, r"Constraints violated.*is axis 0 of the example the"),
        (Returns(lambda x, y: "text"), X, InputError, "returns a value of type str; supported:"),
        (Returns(lambda x, y: {"a": 1.0}), X, InputError, "returns a of type float; supported:"),
        (nn.Linear(4, 4), torch.ones(()), InputError, r"a tensor \[batch, ...\] first, got \[\]"),
        (nn.Linear(4, 4), 3.0, InputError, r"expected a tensor \[batch, ...\] first, got no ten"),
        (nn.Linear(4, 4), (), InputError, "missing a required argument: 'input'; Linear.forward"),
        (nn.Linear(4, 4), {"inputs": X}, InputError, "missing a required argument: 'input'"),
        (nn.Linear(4, 4), X.to("meta"), InputError, "a tensor is on the device meta; expected the"),
        (nn.Linear(5, 4), X, UnsupportedOpError, "torch cannot export Linear: "),
        (Returns(lambda x, y: (y, torch.special.bessel_j0(y))), X, UnsupportedOpError, "bessel"),
    ],
)  # fmt: skip
def test_what_errors_say(
    net: Any, example: Any, error: type[Exception], message: str, tmp_path: Path, capfd: Any
) -> None:
    with pytest.raises(error, match=message) as caught:
        export(net, example, tmp_path / "net.onnx")
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        export(nn.Linear(4, 4), X, tmp_path / "file" / "net.onnx")


def test_an_export_that_is_another_model_is_refused(tmp_path: Path) -> None:
    """torch.export cannot see values that the module reads from outside."""

    class Counts(nn.Linear):
        calls = 0

        def forward(self, x: Any) -> Any:
            Counts.calls += 1
            return super().forward(x) * Counts.calls

    with pytest.raises(ModelError, match=r"output 'output' is .* from torch's, relative to the"):
        export(Counts(4, 4), X, tmp_path / "net.onnx")


def told(status: str) -> Any:
    """A table that says this of every product, and where the node is from."""

    def supported(model: onnx.ModelProto) -> list[Support]:
        return [Support(n.name, n.op_type, "", 18, status, "no rule") for n in
                model.graph.node if n.op_type == "Gemm"]  # fmt: skip

    return supported


def test_nodes_that_pass_no_gradient_on_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the submodule, too, and with what to do."""
    net = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), last=nn.Linear(4, 2)))
    monkeypatch.setattr(support, "check_support", told(support.FORWARD))
    with pytest.warns(ModelWarning, match="no gradient flows") as caught:
        export(net, X, tmp_path / "net.onnx")
    (text,) = [str(w.message) for w in caught if w.category is ModelWarning]
    assert re.search(r"Gemm '\w+' of first: no rule\n  Gemm '\w+' of last: no rule", text)
    assert "train only parameters after them" in text
    monkeypatch.setattr(support, "check_support", told(support.UNSUPPORTED))
    with pytest.raises(
        UnsupportedOpError, match=r"cannot run these nodes; replace .*\n.* of first"
    ):
        export(net, X, tmp_path / "net.onnx")


def test_parameters_go_back_whole_or_not_at_all(tmp_path: Path) -> None:
    net = Net()
    trainer = trainer_of(export(net, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx"))
    for name in ("conv.weight", "head.bias"):
        trainer.state.parameters[name].data[...] = 5.0

    class Other(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

    other = Other()
    with pytest.raises(ShapeError, match=r"'head.bias' is \[4\] in the checkpoint and \[3\] in"):
        to_torch(trainer.state, other)
    assert not bool((other.conv.weight == 5).any())
    with pytest.raises(NameNotFoundError, match=r"no parameter or buffer 'conv.weight'"):
        to_torch(trainer.state, nn.Linear(4, 4))
    with pytest.raises(InputError, match=r"expected a torch.nn.Module, got str"):
        to_torch(trainer.state, "module")
    to_torch(trainer.state, net)
    assert bool((net.conv.weight == 5).all())
    assert net.conv.weight.requires_grad


@pytest.mark.parametrize("named", [True, False])
def test_a_trainer_of_a_module(tmp_path: Path, named: bool) -> None:
    """Its folder holds all that it is made of, and is gone with it if nobody named it."""
    net = Net().train()
    folder = tmp_path / "run" if named else None
    trainer = Trainer.from_torch(
        net, torch.randn(2, 3, 8, 8), CrossEntropyLoss(), SGD(lr=0.1), folder=folder, threads=1
    )
    place = Path(trainer.folder)
    assert (place / "forward.onnx").exists()
    assert (place / "training_model.onnx").exists()
    x, labels = torch.randn(6, 3, 8, 8), torch.randint(0, 4, (6,))
    results = [trainer.step(x.numpy(), labels.numpy()) for _ in range(3)]
    assert results == pytest.approx(torch_steps(net, x, labels), abs=1e-5)
    assert trainer.to_torch(Net()) == ["norm.num_batches_tracked"]
    del trainer
    gc.collect()
    assert place.exists() is named


def test_patterns_choose_what_a_module_trains(tmp_path: Path) -> None:
    example = torch.randn(2, 3, 8, 8)
    trainer = Trainer.from_torch(
        Net(),
        example,
        CrossEntropyLoss(),
        SGD(),
        train="head.*",
        folder=tmp_path,
        threads=1,
        frozen_batch_norm=True,
    )
    trained = [name for name, p in trainer.state.parameters if p.requires_grad]
    assert set(trained) == {"head.weight", "head.bias"}


class Residual(nn.Module):
    """A branch that is dropped in training, as torchvision, timm and transformers write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.a, self.b = way, nn.Linear(6, 6), nn.Linear(6, 3)

    def drop(self, x: Any) -> Any:
        if not self.training:
            return x
        shape, keep = (x.shape[0], *(1 for _ in x.shape[1:])), 0.7
        if self.way == "torchvision":
            return x * torch.empty(shape).bernoulli_(keep).div_(keep)
        if self.way == "timm":
            return x * x.new_empty(shape).bernoulli_(keep).div_(keep)
        if self.way == "transformers":
            return x.div(keep) * (keep + torch.rand(shape)).floor_()
        if self.way == "compared":
            return x * (torch.rand_like(x) < keep).float() / keep
        return x + 0.1 * torch.randn_like(x)

    def forward(self, x: Any) -> Any:
        return self.b(x + self.drop(self.a(x)))


@pytest.mark.parametrize("way", ["torchvision", "timm", "transformers", "compared", "noise"])
def test_dropped_paths_are_whole_in_evaluation(way: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module, x = Residual(way), 3 * torch.randn(5, 6)
    assert export(module, x, tmp_path / "net.onnx").difference < 1e-5
    trainer = Trainer.from_onnx(tmp_path / "net.onnx", MSELoss(), SGD(0.0), threads=1)
    module.eval()
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(trainer.predict(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    assert len({trainer.step(x.numpy(), expected) for _ in range(6)}) > 1


class Auxiliary(nn.Module):
    """A network with a second head in training mode, as GoogLeNet and Inception have."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.named, self.a = named, nn.Linear(6, 6)
        self.head, self.aux = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        h = self.a(x).relu()
        outputs = {"logits": self.head(h), "aux": self.aux(h)}
        if not self.training:
            return {"logits": outputs["logits"]} if self.named else outputs["logits"]
        return outputs


@pytest.mark.parametrize("named", [True, False])
def test_auxiliary_heads_of_training_are_exported(named: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    exported = export(Auxiliary(named), torch.randn(5, 6), tmp_path / "net.onnx")
    assert (exported.outputs, exported.difference < 1e-5) == (("logits", "aux"), True)


def test_outputs_that_no_mode_shares_are_refused(tmp_path: Path) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            y = self.a(x)
            return {"a": y, "b": y + 1} if self.training else {"c": y, "d": y, "e": y}

    with pytest.raises(ModelError, match="returns 'c', 'd', 'e' in evaluation mode and 'a', 'b'"):
        export(Other(), torch.randn(5, 6), tmp_path / "net.onnx")


class Experts(nn.Module):
    """A layer of transformers' kind: each row has two of four experts, by one of two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(_experts_implementation="grouped_mm")
        self.router = nn.Linear(6, 4)
        self.weight = nn.Parameter(torch.randn(4, 5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.router(x).softmax(-1).topk(2)
        rows, experts = x.repeat_interleave(2, dim=0), chosen.reshape(-1)
        if self.config._experts_implementation == "batched_mm":
            y = torch.bmm(self.weight[experts], rows.unsqueeze(-1)).squeeze(-1)
        else:
            pairs = zip(rows, experts.tolist(), strict=True)
            y = torch.stack([self.weight[expert] @ row for row, expert in pairs])
        return (y * scores.reshape(-1, 1)).view(-1, 2, 5).sum(1)


def test_mixtures_of_experts_are_products_of_groups(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 6), Experts())
    x, labels = torch.randn(9, 3), torch.randint(0, 5, (9,))
    folder = tmp_path / "artifacts"
    trainer = Trainer.from_torch(module, x, CrossEntropyLoss(), SGD(lr=0.1), folder=folder)
    assert module[1].config._experts_implementation == "grouped_mm"
    ops = [node.op_type for node in onnx.load(folder / "training_model.onnx").graph.node]
    assert (ops.count("SegmentMatMul"), ops.count("SegmentMatMulGrad")) == (2, 1)
    ours = [trainer.step(x.numpy(), labels.numpy()) for _ in range(3)]
    np.testing.assert_allclose(ours, torch_steps(module, x, labels), rtol=1e-4)
