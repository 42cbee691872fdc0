"""FedProx: a proximal term that holds a client near the parameters that its round began with.

    generate_artifacts(..., proximal=True)      # once, where the artifacts are made
    set_anchors(trainer.state, mu=0.1)          # on a client, when a round begins

A training step then minimises  loss + mu/2 sum |w - w.anchor|^2  over all trained parameters w:

    gradient of w  =  gradient of the loss + mu (w - w.anchor)

The anchors and mu are parameters of the checkpoint that are not trained: `w.anchor`, of the shape
of w, and `proximal_mu`, a scalar.  They begin with w itself and with 0, which is training without
the term.  The loss that a step returns is computed from the data alone, so that it can be compared
with evaluations and with other clients.

Source: "Federated optimization in heterogeneous networks", Li et al. 2020, equation 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.base import arguments
from engine.base.errors import InputError, StateError
from engine.base.proximal import ANCHOR, MU

if TYPE_CHECKING:
    from engine.training.state import CheckpointState

__all__ = ["ANCHOR", "MU", "is_of_term", "set_anchors"]


def is_of_term(name: str, state: CheckpointState) -> bool:
    """Return whether a parameter belongs to the FedProx term (mu or an anchor), not the model."""
    known, owner = state.parameters, name.removesuffix(ANCHOR)
    is_anchor = owner != name and owner in known and known[owner].requires_grad
    return (is_anchor or name == MU) and _has_term(state)


def _has_term(state: CheckpointState) -> bool:
    """Return whether every trained parameter of a state has an anchor, and there is a mu."""
    known = state.parameters
    return MU in known and all(n + ANCHOR in known for n, p in known if p.requires_grad)


def set_anchors(state: CheckpointState, mu: float) -> None:
    """Begin a round: every anchor becomes its parameter as it is now, and mu a new number.

    state: the state of a Trainer, or the `CheckpointState` of a trimmed build.
    mu: the weight of the term, 0 or more; 0 trains without it.

    Raises:
        StateError: the artifacts were made without a proximal term.
        InputError, DTypeError: mu is not such a number.
    """
    if arguments.check_real("mu", mu) < 0:
        raise InputError(f"mu={mu}: expected 0 or more")
    if not _has_term(state):
        raise StateError(
            f"the artifacts have no parameter {MU!r}: make them by "
            "generate_artifacts(..., proximal=True)"
        )
    kept = state.parameters[MU].data
    weight = arguments.cast("mu", mu, kept.dtype)
    for name, parameter in state.parameters:
        if parameter.requires_grad:
            state.parameters[name + ANCHOR].data[...] = parameter.data
    kept[...] = weight
