"""The plan of a training step, and in words what a budget has cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.base.errors import join_names
from engine.plan.plan import CHECK, COUNT, FAULT, LOSS_SCALE, NOISE, RATE, Plan, Port, format_bytes
from engine.system.paths import Paths
from engine.training.model_file import RESET

SHOWN = 6  # nodes that a summary names
REGION_NAMES = {  # for people
    "param": "parameters", "frozen": "frozen constants", "grad": "gradients",
    "state": "state of the optimizer", "const": "constants of plans", "io": "inputs and outputs",
    "work": "arena: values of a step", "made": "constants made ready",
}  # fmt: skip


def list_batch_ports(plan: Plan) -> list[Port]:
    """Return the inputs of a plan that callers pass."""
    ours = (FAULT, NOISE, RESET, RATE, COUNT, CHECK, LOSS_SCALE)
    return [port for port in plan.inputs if port.name not in ours]


@dataclass(frozen=True, slots=True, repr=False)
class StepPlan:
    """The plan of a training step.

    plan: the plan of forward, backward and update; without the update if `update` is its plan.
    update: the plan of the optimizer model, if it runs as a plan of its own.
    obstacle: why it does.
    budget: in bytes, None if there is none.
    micro_batches: the number of parts in which a batch is trained on; the plan is for one part.
    paths: the paths of the nodes of the training model.

    `print` shows three lines, `summary` more.
    """

    plan: Plan
    update: Plan | None = None
    obstacle: str = ""
    budget: int | None = None
    micro_batches: int = 1
    paths: Paths = field(default=Paths(), repr=False, compare=False)

    @property
    def regions(self) -> dict[str, int]:
        """The bytes of each region that a step takes."""
        sizes = dict(self.plan.regions)
        for name, size in () if self.update is None else self.update.regions:
            sizes[name] = max(sizes.get(name, 0), size)
        return {name: size for name, size in sizes.items() if size}

    @property
    def nbytes(self) -> int:
        """The bytes of all regions."""
        return sum(self.regions.values())

    def compute_region_bytes(self, region: str) -> int:
        """Return the bytes of a region, 0 when a step does not use it."""
        return self.regions.get(region, 0)

    @property
    def recomputed(self) -> list[str]:
        """The nodes that compute something a second time, in the order of the steps."""
        return list(dict.fromkeys(s.source for s in self.plan.steps if s.again))

    @property
    def recomputed_share(self) -> float:
        """The share of the predicted time of a step that goes to what is computed a second time."""
        from engine.kernels.analysis.cost import predict_steps

        took = predict_steps(self.plan)
        again = [t for t, s in zip(took, self.plan.steps, strict=True) if s.again]
        return sum(again) / sum(took) if again else 0.0

    @property
    def kept_gradients(self) -> str:
        """Why gradients are kept beyond the update of their parameter; empty if they are not."""
        if self.update is not None:
            return f"in region grad, as {self.obstacle}: update and training are two plans"
        from engine.kernels.ops.optimizer.clipping import clip_factor

        clips = {k.symbol for k in self.plan.kernels if k.spec.template == clip_factor.name}
        norm = next((s.source for s in self.plan.steps if s.kernel in clips), "")
        return norm and f"in region work until the norm of all is known, which {norm!r} clips to"

    def __str__(self) -> str:
        takes = ", ".join(f"{port.name} {list(port.shape)}" for port in list_batch_ports(self.plan))
        parts = f", a batch in {self.micro_batches} parts" if self.micro_batches > 1 else ""
        plans = "one plan" if self.update is None else f"two plans, as {self.obstacle}"
        held = ", ".join(
            f"{format_bytes(size)} {REGION_NAMES[name]}" for name, size in self.regions.items()
        )
        budget = "" if self.budget is None else f" of {format_bytes(self.budget)} allowed"
        calls = len(self.plan.steps) + (0 if self.update is None else len(self.update.steps))
        return (
            f"a training step on {takes}{parts}: {plans}, {calls:,} kernel calls\n"
            f"threads {self.plan.threads}, kernels {self.plan.target}, arena/bound "
            f"{self.plan.ratio:.3f}, computed again {len(self.recomputed)} nodes\n"
            f"memory {format_bytes(self.nbytes)}{budget}: {held}"
        )

    __repr__ = __str__

    def summary(self) -> str:
        """Return lines of text: bytes by region, the quality of the placement, recomputations."""
        budget = "" if self.budget is None else f" of {format_bytes(self.budget)} allowed"
        lines = [
            self.plan.summary(),
            f"  all regions {format_bytes(self.nbytes)}{budget}; bound of region work "
            f"{format_bytes(self.plan.lower_bound)}, arena/bound {self.plan.ratio:.3f}",
        ]
        if self.micro_batches > 1:
            lines.append(f"  a batch is trained on in {self.micro_batches} parts")
        again = self.recomputed
        if again:
            shown = join_names(map(self.paths.label_node, again), SHOWN, quoted=False)
            lines.append(
                f"  computed a second time: {shown}; "
                f"{self.recomputed_share:.1%} of the predicted time"
            )
        if self.kept_gradients:
            lines.append(f"  gradients are kept {self.kept_gradients}")
        return "\n".join(lines)
