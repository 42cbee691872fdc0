"""Options of trimmed builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.base.errors import InputError
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.targets import Platform


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request for the plans of a folder of artifacts.

    batches: the batch sizes to plan for.  A symbolic first dimension of an input has this size.
        Without any, the model must fix its number of samples.
    threads: how many threads a step uses, the caller's included.
    shapes: the shapes of inputs by name, where the batch size does not determine them.
    outputs: the tensors that inference computes; empty: what the loss reads of the forward model
        (see `forward_outputs`).
    joined: let training steps update each parameter as soon as its gradient is complete, so that no
        memory is taken for gradients.
    planning: options of the plans.
    only: make plans for this use alone; empty: for all phases.
    size: prefer small code to fast code: call the smaller kernel in the place of each that has one.
    decoder: plan a decoder, too, which continues texts and shares the parameters.
    closed: use only kernels that a library for the models' ops contains.
    """

    batches: Sequence[int] = ()
    threads: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    joined: bool = False
    planning: PlanOptions = DEFAULTS
    only: Only = ""
    size: bool = False
    decoder: DecoderOptions | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        if self.joined and self.only not in ("", "train"):
            raise InputError(f"--joined updates in training steps: leave out --only {self.only}")
        if self.only == "decoder" and self.decoder is None:
            raise InputError("--only decoder: give --positions, the tokens that its caches hold")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a build.

    name: the prefix of all functions, and the name of the files.
    plans: the plans that the library has, and whether its kernels are small or fast.
    static: make an archive instead of a shared library.
    freestanding: make an archive that needs no C library; bare metal has nothing else.
    compiler: a command, or `zig`; empty: the first that fits the target.
    federated: add the functions of a device of a federation, an example, and Python's package.
    bindings: languages, by their names in `LANGUAGES`, that get a package in a folder of that name.
    also: platforms for which these packages have the library, too.
    export: put the graph of the inference model into the library, which then writes ONNX files.
    """

    name: str
    platform: Platform
    plans: PlanRequest
    static: bool = False
    freestanding: bool = False
    compiler: str = ""
    federated: bool = False
    bindings: Sequence[str] = ()
    also: Sequence[Platform] = ()
    export: bool = False

    @property
    def each(self) -> list[Options]:
        """The same options for each platform alone, the build's own first.

        A module of WebAssembly has one thread beside others that share memory.
        """
        platforms = (self.platform, *self.also)
        shared = any(p.shares_memory for p in platforms)
        alone = [shared and p.is_wasm and not p.shares_memory for p in platforms]
        single = replace(self.plans, threads=1)
        return [
            replace(self, platform=p, also=(), plans=single if is_alone else self.plans)
            for p, is_alone in zip(platforms, alone, strict=True)
        ]

    def __post_init__(self) -> None:
        if self.platform.is_bare:  # there are no other builds
            object.__setattr__(self, "freestanding", True)
        only = self.plans.only
        for wish, chosen, reason in (
            ("--federated", self.federated, "trains and evaluates"),
            ("--export", self.export and only != "inference", "writes the inference model"),
        ):
            if chosen and only:
                raise InputError(f"{wish} {reason}: leave out --only {only}")
