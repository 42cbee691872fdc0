"""Options of trimmed builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.base.errors import InputError
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.targets import Platform


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a build.

    name: the prefix of all functions, and the name of the files.
    batches: the batch sizes to plan for; none if the model fixes its number of samples.
    threads: how many threads a step uses, the caller's included.
    shapes: the shapes of inputs by name, where the batch size does not determine them.
    outputs: the tensors that inference computes; empty: what the loss reads of the forward model.
    static: make an archive instead of a shared library.
    size: prefer small code to fast code in the kernels.
    freestanding: make an archive that needs no C library; bare metal has nothing else.
    compiler: a command, or `zig`; empty: the first that fits the target.
    joined: let training steps update the parameters, so that no memory is taken for gradients.
    planning: options of the plans.
    federated: add the functions of a device of a federation, an example, and Python's package.
    bindings: languages, by their names in `LANGUAGES`, that get a package in a folder of that name.
    also: platforms for which these packages have the library, too.
    export: put the graph of the inference model into the library, which then writes ONNX files.
    only: leave out the plans, kernels and functions that inference, training, or a decoder does not
        use.
    decoder: add a decoder, which continues texts.
    """

    name: str
    platform: Platform
    batches: Sequence[int]
    threads: int = 1
    shapes: Mapping[str, tuple[int, ...]] | None = None
    outputs: Sequence[str] = ()
    static: bool = False
    size: bool = False
    freestanding: bool = False
    compiler: str = ""
    joined: bool = False
    planning: PlanOptions = DEFAULTS
    federated: bool = False
    bindings: Sequence[str] = ()
    also: Sequence[Platform] = ()
    export: bool = False
    only: Only = ""
    decoder: DecoderOptions | None = None

    @property
    def each(self) -> list[Options]:
        """The same options for each platform alone, the build's own first.

        A module of WebAssembly has one thread beside others that share memory.
        """
        platforms = (self.platform, *self.also)
        shared = any(p.shares_memory for p in platforms)
        alone = [shared and p.is_wasm and not p.shares_memory for p in platforms]
        return [
            replace(self, platform=p, also=(), threads=1 if is_alone else self.threads)
            for p, is_alone in zip(platforms, alone, strict=True)
        ]

    def __post_init__(self) -> None:
        if self.platform.is_bare:  # there are no other builds
            object.__setattr__(self, "freestanding", True)
        for wish, chosen, reason in (
            ("--joined", self.joined and self.only != "train", "updates in training steps"),
            ("--federated", self.federated, "trains and evaluates"),
            ("--export", self.export and self.only != "inference", "writes the inference model"),
        ):
            if chosen and self.only:
                raise InputError(f"{wish} {reason}: leave out --only {self.only}")
        if self.only == "decoder" and self.decoder is None:
            raise InputError("--only decoder: give --positions, the tokens that its caches hold")
