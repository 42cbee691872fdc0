"""Keras's side of `bench exporters`: models, exported by tf2onnx, and three steps of SGD.

    python -m bench.scripts.keras_models FOLDER [NAME ...]

Needs TensorFlow, Keras and tf2onnx.  Writes NAME.onnx and NAME.npz, with inputs `x<i>`, the target
`y`, the `output`, `losses` of the mean square and `remark`, for each model and then prints the name
and, if there is no model, the reason.  Weights are moved away from their initial values, because
TensorFlow leaves out biases of zeros when it exports.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ |= {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "KERAS_BACKEND": "tensorflow",
}

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from bench.scripts.exported import CLASSES, MODELS, RATE, ROWS, STEPS, export_named, model

FOLDED = "batch normalisations are folded: only the first loss is compared"
TWO_BIASES = "ONNX's LSTM has two biases for Keras's one: only the first loss is compared"


def stack(shape: tuple[int, ...], *parts: Any, dtype: str = "float32") -> keras.Model:
    start = value = keras.Input(shape, dtype=dtype)
    for part in parts:
        value = part(value)
    return keras.Model(start, layers.Dense(CLASSES)(value))


def apply_gelu(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=True)  # tf2onnx has no Erfc


@model()
def dense() -> keras.Model:
    return stack(
        (20,), layers.Dense(32, activation="relu"), layers.Dense(32, activation=apply_gelu)
    )


@model()
def convolutions() -> keras.Model:
    return stack(
        (16, 16, 3),
        layers.Conv2D(8, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 3, strides=2, padding="same", activation="swish"),
        layers.Flatten(),
    )


@model(FOLDED)
def batch_norms() -> keras.Model:
    return stack(
        (16, 16, 3),
        layers.Conv2D(8, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(6.0),
        layers.DepthwiseConv2D(3, padding="same"),
        layers.BatchNormalization(),
        layers.LeakyReLU(),
        layers.GlobalAveragePooling2D(),
    )


@model()
def separable() -> keras.Model:
    return stack(
        (17, 17, 3),
        layers.SeparableConv2D(8, 3, padding="same", activation="swish"),
        layers.AveragePooling2D(2, padding="same"),
        layers.SeparableConv2D(8, 3, dilation_rate=2),
        layers.GlobalMaxPooling2D(),
    )


@model(TWO_BIASES)
def lstm() -> keras.Model:
    return stack((12, 8), layers.LSTM(16, return_sequences=True), layers.LSTM(16))


@model()
def gru() -> keras.Model:
    first = layers.GRU(16, return_sequences=True)
    return stack((12, 8), first, layers.GRU(16, reset_after=False))


@model(TWO_BIASES)
def two_directions() -> keras.Model:
    both = layers.Bidirectional(layers.LSTM(16, return_sequences=True))
    return stack((12, 8), both, layers.GlobalAveragePooling1D())


@model()
def simple_recurrence() -> keras.Model:
    return stack((12, 8), layers.SimpleRNN(16))


@model()
def masked_text() -> keras.Model:
    embedding = layers.Embedding(30, 16, mask_zero=True)
    return stack((12,), embedding, layers.LSTM(16), dtype="int32")


@model()
def causal_text() -> keras.Model:
    return stack(
        (12,),
        layers.Embedding(30, 16),
        layers.Conv1D(16, 3, activation="relu", padding="causal"),
        layers.GlobalMaxPooling1D(),
        dtype="int32",
    )


@model()
def transformer() -> keras.Model:
    start = keras.Input((12, 16))
    attended = layers.MultiHeadAttention(2, 8)(start, start, use_causal_mask=True)
    first = layers.LayerNormalization()(attended + start)
    inner = layers.Dense(32, activation=apply_gelu)(first)
    last = layers.LayerNormalization()(layers.Dense(16)(inner) + first)
    return keras.Model(start, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(last)))


@model()
def unet() -> keras.Model:
    start = keras.Input((16, 16, 3))
    outer = layers.Conv2D(8, 3, padding="same", activation="relu")(start)
    inner = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(outer)
    up = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(inner)
    wide = layers.UpSampling2D(2, interpolation="bilinear")(inner)
    return keras.Model(start, layers.Conv2D(CLASSES, 1)(layers.Concatenate()([outer, up, wide])))


@model()
def norms() -> keras.Model:
    return stack(
        (8, 8, 8),
        layers.GroupNormalization(4),
        layers.Conv2D(8, 3),
        layers.UnitNormalization(),
        layers.PReLU(shared_axes=[1, 2]),
        layers.RMSNormalization(),
        layers.Flatten(),
    )


@model()
def volumes() -> keras.Model:
    shape = (8, 8, 8, 2)
    return stack(
        shape, layers.Conv3D(4, 3, activation="elu"), layers.MaxPooling3D(), layers.Flatten()
    )


@model()
def squeeze_excitation() -> keras.Model:
    start = keras.Input((12, 12, 8))
    value = layers.Conv2D(8, 3, padding="same", activation="swish")(start)
    scale = layers.GlobalAveragePooling2D(keepdims=True)(value)
    scale = layers.Conv2D(4, 1, activation="relu")(scale)
    scale = layers.Conv2D(8, 1, activation="sigmoid")(scale)
    pooled = layers.GlobalAveragePooling2D()(layers.Multiply()([value, scale]))
    return keras.Model(start, layers.Dense(CLASSES)(pooled))


@model()
def two_inputs() -> keras.Model:
    one, other = keras.Input((6,), name="one"), keras.Input((4,), name="other")
    joined = layers.Concatenate()([layers.Dense(8, activation="relu")(i) for i in (one, other)])
    return keras.Model([one, other], layers.Dense(CLASSES)(joined))


@model()
def frames() -> keras.Model:
    return stack(
        (4, 8, 8, 3),
        layers.TimeDistributed(layers.Conv2D(4, 3, activation="relu")),
        layers.TimeDistributed(layers.Flatten()),
        layers.GRU(8),
    )


@model()
def conv_lstm() -> keras.Model:
    return stack((4, 8, 8, 2), layers.ConvLSTM2D(4, 3, padding="same"), layers.Flatten())


@model()
def called_twice() -> keras.Model:
    shared = layers.Dense(20, activation="tanh")
    return stack((20,), shared, shared)


def register_application(name: str, **options: Any) -> None:
    """Register a network of keras.applications."""

    def make() -> keras.Model:
        return getattr(keras.applications, name)(
            weights=None, classes=CLASSES, input_shape=(64, 64, 3), classifier_activation=None,
            **options,
        )  # fmt: skip

    MODELS[name] = make, FOLDED


register_application("MobileNetV2", alpha=0.35)
register_application("MobileNetV3Small", include_preprocessing=False)
register_application("EfficientNetB0")
register_application("EfficientNetV2B0", include_preprocessing=False)


def move_weights(net: keras.Model, random: np.random.Generator) -> None:
    for weight in net.weights:
        if weight.dtype != "float32":
            continue
        if "variance" in weight.path:
            weight.assign(weight.numpy() + 0.2 * random.random(weight.shape).astype(np.float32))
        else:
            change = 0.02 * random.standard_normal(weight.shape).astype(np.float32)
            weight.assign(weight.numpy() + change)


def write(name: str, folder: Path) -> None:
    make, remark = MODELS[name]
    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    net, random = make(), np.random.default_rng(0)
    move_weights(net, random)
    inputs = []
    for i in net.inputs:
        shape = (ROWS, *i.shape[1:])
        is_text = "int" in i.dtype
        values = random.integers(1, 30, shape) if is_text else random.standard_normal(shape)
        inputs.append(values.astype(i.dtype))
    given = inputs if len(inputs) > 1 else inputs[0]
    output = net(given, training=False).numpy()
    target = random.standard_normal(output.shape).astype(np.float32)
    net.export(folder / f"{name}.onnx", format="onnx", verbose=False)
    losses = []
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(given, training=False) - target) ** 2)
        losses.append(float(loss))
        gradients = tape.gradient(loss, net.trainable_variables)
        for weight, gradient in zip(net.trainable_variables, gradients, strict=True):
            weight.assign_sub(RATE * tf.convert_to_tensor(gradient))
    arrays: dict[str, Any] = {f"x{k}": x for k, x in enumerate(inputs)}
    np.savez(
        folder / f"{name}.npz", y=target, output=output, losses=losses, remark=remark, **arrays
    )


if __name__ == "__main__":
    export_named(write)
