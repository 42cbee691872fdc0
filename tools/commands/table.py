"""The table of commands.  It needs no package, so help and completion import no command."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


@dataclass(frozen=True, slots=True)
class Row:
    """A command.

    module: the module of engine.tools.commands that defines it as `command`.
    summary: the first sentence of its help.
    section: its heading in `edgegrad --help`; the command is hidden if this is empty.
    """

    module: str
    summary: str
    section: str = ""

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = import_module(f"engine.tools.commands.{self.module}").command
        return command


_DEVICES, _MODELS, _ABOUT, _TRAINING = "Devices", "Models", "This installation", "Training"

COMMANDS = {
    "new": Row("new", "Start a project: copy a template that runs.", _TRAINING),
    "train": Row("train", "Train a model on a folder of data.", _TRAINING),
    "eval": Row("evaluate", "Measure the loss and metrics of a trained model on other data.",
                _TRAINING),
    "compare": Row("compare", "Compare runs: best values, time, memory, sizes and the settings "
                   "that differ.", _TRAINING),
    "predict": Row("predict", "Predict classes with their probabilities, or values, or masks, for "
                   "files.", _TRAINING),
    "export": Row("export", "Write a trained model as plain ONNX, for inference anywhere.",
                  _TRAINING),
    "quantize": Row("quantize", "Quantise a trained float model to 8-bit integers, and measure the "
                    "loss of accuracy.", _TRAINING),
    "demo": Row("demo", "Train, export and check a digit classifier.", _TRAINING),
    "artifacts": Row("artifacts", "Make a forward model trainable: write its artifacts.",
                     _TRAINING),
    "lora": Row("lora", "Add low-rank adapters to layers of a model, or merge its adapters.",
                _MODELS),
    "specialize": Row("specialize", "Make a model for known values and shapes of its inputs.",
                      _MODELS),
    "ops": Row("ops", "List which nodes of models can be trained, and why others cannot.", _MODELS),
    "check": Row("check", "Predict the memory and time of a training run, and list the obstacles "
                 "to it.", _MODELS),
    "plan": Row("plan", "Print, draw, compare, check or write the plans of a model.", _MODELS),
    "profile": Row("profile", "Show where the time of a training step goes: by kernel, by node, by "
                   "phase.", _MODELS),
    "prepare": Row("prepare", "Write plans next to artifacts, so that training starts at once.",
                   _DEVICES),
    "build": Row("build", "Make a small library that trains one model on a device.", _DEVICES),
    "targets": Row("targets", "List the devices for which builds and plans can be made.", _DEVICES),
    "bench": Row("bench", "Measure how fast this machine trains known models.", _ABOUT),
    "switches": Row("switches", "List the EDGEGRAD_* environment variables and their values.",
                    _ABOUT),
    "version": Row("version", "Print the versions of edgegrad and its dependencies.", _ABOUT),
    "completion": Row("completion", "Print a script that completes commands in a shell.", _ABOUT),
    "show": Row("show", "Print the plan of a model; now a part of `edgegrad plan`."),
}  # fmt: skip

STATUSES = {  # exit statuses that all commands share
    0: "success",
    1: "an error, described in one line",
    2: "wrong usage",
    130: "interrupted by Ctrl-C",
    141: "the program that reads the output has closed it",
}
