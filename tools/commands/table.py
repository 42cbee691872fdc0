"""The table of commands.  It needs no package, so that help and completion import no command."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


@dataclass(frozen=True, slots=True)
class Row:
    """A command.

    module: the file under engine.tools.commands that has it as `command`.
    summary: the first sentence of its help.
    section: the heading under which `edgegrad --help` has it; hidden if there is none.
    """

    module: str
    summary: str
    section: str = ""

    def load(self) -> click.Command:
        """Import the command."""
        found: click.Command = import_module(f"engine.tools.commands.{self.module}").command
        return found


_DEVICES, _MODELS, _ABOUT, _TRAINING = "Devices", "Models", "This installation", "Training"

COMMANDS = {
    "new": Row("new", "Begin a project: copy a template that runs.", _TRAINING),
    "train": Row("train", "Train a model on a folder of data.", _TRAINING),
    "eval": Row("evaluate", "Measure the loss and metrics of a trained model on other data.",
                _TRAINING),
    "predict": Row("predict", "Predict the classes of files, with their probabilities, or values.",
                   _TRAINING),
    "export": Row("export", "Write a trained model as plain ONNX, for inference anywhere.",
                  _TRAINING),
    "demo": Row("demo", "Train, export and check a digit classifier.", _TRAINING),
    "artifacts": Row("artifacts", "Make a forward model trainable: write its artifacts.",
                     _TRAINING),
    "lora": Row("lora", "Give layers of a model low-rank adapters, or merge those that it has.",
                _MODELS),
    "ops": Row("ops", "Say which nodes of models can be trained, and why not.", _MODELS),
    "check": Row("check", "Tell what a training will take of memory and time, and what keeps a "
                 "model from one.", _MODELS),
    "plan": Row("plan", "Print, draw, compare, check or write the plans of a model.", _MODELS),
    "profile": Row("profile", "Tell where the time of a training step goes: by kernel, by node, by "
                   "phase.", _MODELS),
    "prepare": Row("prepare", "Write plans beside artifacts, so that training starts at once.",
                   _DEVICES),
    "build": Row("build", "Make a small library that trains one model on a device.", _DEVICES),
    "targets": Row("targets", "List the devices that builds and plans are made for.", _DEVICES),
    "bench": Row("bench", "Measure how fast this machine trains known models.", _ABOUT),
    "switches": Row("switches", "List the EDGEGRAD_* environment variables and their values.",
                    _ABOUT),
    "version": Row("version", "Print the versions of edgegrad and of what it builds on.", _ABOUT),
    "completion": Row("completion", "Print a script that completes commands in a shell.", _ABOUT),
    "show": Row("show", "Print the plan of a model; now a part of `edgegrad plan`."),
}  # fmt: skip

STATUSES = {  # exit statuses that all commands share
    0: "done",
    1: "an error, told in one line",
    2: "wrong usage",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output has gone",
}
