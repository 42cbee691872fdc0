"""Decoders of builds: a plan for a prompt and one for a further token, with caches in place.

    step     input_ids [1, 1], attention_mask [1, positions], position_ids [1, 1], #filled [1],
             caches [1, heads, positions, width]  ->  scores [1, tokens]
    prompt   input_ids [1, prompt], attention_mask [1, prompt], position_ids [1, prompt],
             #filled [1]  ->  scores [1, 1, tokens], rows of caches [1, heads, prompt, width]

Of a step, `#filled` is the number of tokens before it; of a prompt, of its own tokens that count.
A step adds its rows to the caches, which lie among its inputs: that memory is the step's alone, so
they stay from step to step.  The rows of a prompt are copied there once.  The runtime finds the
inputs by their order, see `DecoderPlans`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.base.errors import DTypeError, FileError, InputError, ShapeError
from engine.base.plan_options import PlanOptions
from engine.plan.plan import FILLED, Plan, align
from engine.training.decoder import (
    IDS,
    MASK,
    POSITIONS,
    Decoder,
    describe_use,
    find_caches,
    find_scores,
)
from engine.training.large_constants import freeze_constants
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.state import CheckpointState

NAME = "decoder.onnx"
USES = ("step", "prompt")  # plans by the numbers C has for them, after the phases
PROMPT = 16  # tokens of a prompt's plan, where nobody says; as of the smallest of `Decoder`
WHOLE = ("i64", "i32")  # element types of inputs that the runtime fills


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """The decoder of a build.

    positions: the rows of its caches, and so the largest number of tokens.
    prompt: how many first tokens have a plan for all of them together; 1: no plan for prompts.
    path: its file; None: `NAME` in the folder of artifacts.
    """

    positions: int
    prompt: int = 0
    path: Path | None = field(default=None, repr=False)  # builds of one file are alike

    def __post_init__(self) -> None:
        """Check the numbers; a prompt of 0 is as long as `PROMPT` and the caches allow.

        Raises:
            InputError: a number is out of range.
        """
        if not 1 <= self.positions < 1 << 31:
            raise InputError(
                f"--positions {self.positions}: the caches of a decoder hold 1 token or more"
            )
        if not 0 <= self.prompt <= self.positions:
            raise InputError(
                f"--prompt {self.prompt}: expected 1 to {self.positions}, as many tokens as the "
                "caches hold"
            )
        object.__setattr__(self, "prompt", self.prompt or min(PROMPT, self.positions))


@dataclass(frozen=True, slots=True)
class DecoderPlans:
    """The plans of a decoder, and which of their inputs and outputs the runtime reads and writes.

    plans: of `USES`; a decoder without a plan for prompts lacks that.
    inputs, outputs: by use: the tokens, the mask and the positions if the model has them; then how
        many rows count, and for a step the caches.  The first output has the scores; outputs of a
        prompt after it have the rows for the caches, in their order.
    """

    options: DecoderOptions
    plans: Mapping[str, Plan]
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]

    @property
    def places(self) -> Mapping[str, int]:
        """Numbers of the inputs of a step by what they hold; 0 for what it has not."""
        names = list(self.inputs["step"])
        filled = names.index(FILLED)
        return {
            "IDS": 0,
            "MASK": names.index(MASK) if MASK in names else 0,
            "PLACES": names.index(POSITIONS) if POSITIONS in names else 0,
            "FILLED": filled,
            "CACHES": filled + 1,
        }

    @property
    def cache_bytes(self) -> int:
        """The bytes of all caches."""
        plan = self.plans["step"]
        names = self.inputs["step"][self.places["CACHES"] :]
        ports = {port.name: plan.buffers[port.buffer] for port in plan.inputs}
        return sum(align(ports[name].nbytes) for name in names)


def find_decoder(folder: Path | None, options: DecoderOptions) -> Path:
    """Return the file of a decoder; folder: of artifacts, if there are any.

    Raises:
        FileError: there is no such file.
    """
    path = options.path or (folder or Path()) / NAME
    if not path.is_file():
        more = "" if options.path else ": give --decoder, the file of a model with caches"
        raise FileError(f"{os.fspath(path)}: no such file{more}")
    return path


def plan_decoder(options: DecoderOptions, model: Model) -> DecoderPlans:
    """Plan a decoder, whose large constants are in its memory already.

    Raises:
        InputError: the model has no caches, or other inputs beside them.
        DTypeError, ShapeError: an input or the scores are of another type or shape than the runtime
            of a build knows.
        EngineError: the model cannot be planned.
    """
    presents = find_caches(model)
    scores, others = find_scores(model, presents), [n for n in model.inputs if n not in presents]
    order = [name for name in (IDS, MASK, POSITIONS) if name in others]
    for name in order:
        dtype = model.interface.inputs[name].dtype
        if dtype not in WHOLE:
            raise DTypeError(f"input {name!r} of the {model.what} is {dtype}; supported: i64, i32")
    sizes = {"step": (1, options.positions), "prompt": (options.prompt, 0)}
    if options.prompt == 1:
        del sizes["prompt"]
    plans = {
        use: model.plan_decoding(describe_use(model, presents, 1, tokens, rows))[0]
        for use, (tokens, rows) in sizes.items()
    }
    for use, plan in plans.items():
        shape = next(port.shape for port in plan.outputs if port.name == scores)
        if len(shape) != 3 or shape[:2] != (1, 1):
            raise ShapeError(
                f"output {scores!r} of the {model.what} has the shape {list(shape)} for the last "
                f"of {sizes[use][0]} tokens; expected [1, 1, scores]"
            )
    return DecoderPlans(
        options,
        plans,
        {"step": [*order, FILLED, *presents], "prompt": [*order, FILLED]},
        {"step": [scores], "prompt": [scores, *presents.values()]},
    )


def open_decoder(
    raw: bytes, state: CheckpointState, planning: PlanOptions, positions: int
) -> Decoder:
    """Return a decoder that answers on this machine.

    Its first answer compares steps with an answer to a whole text, and raises UnsupportedOpError if
    the model counts the rows of its caches in a way that bears no capacity.

    raw: the model, as `read_sharing` makes it.  positions: the rows of its caches.
    """
    memory = Memory(planning=planning)
    model = Model(raw, state, memory, 1, "decoder", answers=True)
    freeze_constants([model], memory)
    return Decoder(lambda: (model, None), capacity=positions)
