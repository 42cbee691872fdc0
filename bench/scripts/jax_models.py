"""JAX's side of `bench exporters`: models of Flax, exported by jax2onnx, and three steps of SGD.

    python -m bench.scripts.jax_models FOLDER [NAME ...]

Needs JAX, Flax and jax2onnx.  Writes and prints as keras_models.py does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
from flax import nnx
from jax import numpy as jnp
from jax2onnx import to_onnx

from bench.scripts.exported import CLASSES, MODELS, RATE, ROWS, STEPS, export_named, model

SCALARS = "one of its parameters is a scalar, which is trained only by name: only the first loss"
random_numbers = nnx.Rngs(0)
Made = tuple[Callable[..., Any], tuple[int, ...]]  # a module, and the shape of a sample


class Stack(nnx.Module):
    """Layers and functions, one after another, and a linear layer."""

    def __init__(self, *parts: Callable[..., Any], width: int) -> None:
        self.parts = nnx.List([*parts, make_linear(width, CLASSES)])

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


def make_linear(width: int, outputs: int) -> nnx.Linear:
    return nnx.Linear(width, outputs, rngs=random_numbers)


def make_convolution(channels: int, outputs: int, **options: Any) -> nnx.Conv:
    return nnx.Conv(channels, outputs, (3, 3), rngs=random_numbers, **options)


def pool(x: Any) -> Any:
    return nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))


def average(x: Any) -> Any:
    return x.mean((1, 2))


@model()
def dense() -> Made:
    norm = nnx.LayerNorm(32, rngs=random_numbers)
    return Stack(make_linear(20, 32), nnx.gelu, norm, width=32), (20,)


@model()
def convolutions() -> Made:
    norm = nnx.BatchNorm(8, rngs=random_numbers, use_running_average=True)
    grouped = make_convolution(8, 8, feature_group_count=8)
    parts = (
        make_convolution(3, 8, use_bias=False),
        norm,
        nnx.relu,
        pool,
        grouped,
        nnx.silu,
        average,
    )
    return Stack(*parts, width=8), (16, 16, 3)


@model()
def transposed() -> Made:
    norm = nnx.GroupNorm(8, num_groups=4, rngs=random_numbers)
    wider = nnx.ConvTranspose(8, 4, (3, 3), strides=(2, 2), rngs=random_numbers)
    parts = (make_convolution(3, 8), norm, nnx.softplus, wider, nnx.leaky_relu, average)
    return Stack(*parts, width=4), (8, 8, 3)


@model()
def attention() -> Made:
    class Attention(nnx.Module):
        def __init__(self) -> None:
            self.heads = nnx.MultiHeadAttention(2, 16, decode=False, rngs=random_numbers)
            self.norm, self.last = nnx.RMSNorm(16, rngs=random_numbers), make_linear(16, CLASSES)

        def __call__(self, x: Any) -> Any:
            return self.last(self.norm(x + self.heads(x)).mean(1))

    return Attention(), (12, 16)


@model(SCALARS)
def experts() -> Made:
    class Experts(nnx.Module):
        def __init__(self) -> None:
            self.gate, self.last = make_linear(16, 4), make_linear(8, CLASSES)
            self.weights = nnx.Param(0.1 * jax.random.normal(jax.random.key(1), (4, 16, 8)))
            self.heat = nnx.Param(jnp.array(0.7))

        def __call__(self, x: Any) -> Any:
            shares = jax.nn.softmax(self.gate(x) * self.heat[...])
            return self.last(jnp.einsum("be,bi,eio->bo", shares, x, self.weights[...]))

    return Experts(), (16,)


@model()
def functions() -> Made:
    def bend(x: Any) -> Any:
        x = jnp.where(x > 0, x, jnp.expm1(x))
        x = jnp.cumsum(x, axis=1) / jnp.sqrt(1 + jnp.square(x))
        x = jnp.sort(x, -1)
        x = jnp.concatenate([x[:, ::2], jnp.log1p(jnp.abs(x[:, 1::2]))], 1)
        x = jnp.clip(x + jnp.roll(x, 1, 1), -2.0, 2.0)
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return jax.nn.log_softmax(x) + jnp.logaddexp(x, 0.0)

    return Stack(make_linear(16, 16), bend, width=16), (16,)


def write(name: str, folder: Path) -> None:
    make, remark = MODELS[name]
    net, shape = make()
    random = np.random.default_rng(0)
    moved = jax.tree.map(
        lambda v: v + 0.02 * np.abs(random.standard_normal(v.shape)).astype(v.dtype)
        if v.dtype == jnp.float32 else v,
        nnx.state(net),
    )  # fmt: skip
    nnx.update(net, moved)
    x = random.standard_normal((ROWS, *shape)).astype(np.float32)
    output = np.asarray(net(x))
    target = random.standard_normal(output.shape).astype(np.float32)
    onnx.save(to_onnx(net, [jax.ShapeDtypeStruct(x.shape, x.dtype)]), folder / f"{name}.onnx")
    losses = []
    for _ in range(STEPS):
        loss, gradients = nnx.value_and_grad(lambda n: jnp.mean((n(x) - target) ** 2))(net)
        losses.append(float(loss))
        step = jax.tree.map(lambda p, g: p - RATE * g, nnx.state(net, nnx.Param), gradients)
        nnx.update(net, step)
    np.savez(folder / f"{name}.npz", y=target, output=output, losses=losses, remark=remark, x0=x)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    export_named(write)
