"""Kinds of mutated input: the form of the classes of inputs that the fuzzer knows."""

from __future__ import annotations

import contextlib
import random
from typing import Any, ClassVar

STEPS = (1, 1, 1, 1, 2, 2, 3, 5)  # how many things are changed of one input


class Kind:
    """A kind of input.

    name: what the command line calls it.
    suffix: of a file that holds a mutated input.
    plans: whether it is what planning has kept; if not, a broken plan is a defect of the planner.
    """

    name: ClassVar[str]
    suffix: ClassVar[str] = ".bin"
    plans: ClassVar[bool] = False

    def prepare(self) -> None:
        """Make what all mutations begin with; called once, before processes are started."""

    def begin(self, rng: random.Random) -> Any:
        """A fresh input in which nothing is wrong."""
        raise NotImplementedError

    def change(self, subject: Any, rng: random.Random) -> Any:
        """Change one thing; returns the changed input, which may be the one given."""
        raise NotImplementedError

    def run(self, subject: Any, rng: random.Random) -> str:
        """Use the input as far as it goes; returns how far, as "planned" or "ran"."""
        raise NotImplementedError

    def content(self, subject: Any) -> bytes:
        """Return the content of a file from which a person can see what was wrong."""
        return bytes(subject)

    # --- mutations

    def made(self, seed: int, only: frozenset[int] | None = None) -> tuple[Any, int]:
        """The input that a seed stands for, and how many changes it has.

        only: the changes to make, by their places; the others are left out.
        """
        rng = random.Random(f"{self.name} {seed}")
        subject, steps = self.begin(rng), rng.choice(STEPS)
        for step in range(steps):
            if only is None or step in only:
                # Input that is already broken does not allow every change.
                with contextlib.suppress(Exception):
                    subject = self.change(subject, random.Random(f"{self.name} {seed} {step}"))
        return subject, steps

    def use(self, subject: Any, seed: int) -> str:
        """Run the input that a seed stands for; see `run`."""
        return self.run(subject, random.Random(f"{self.name} {seed} run"))
