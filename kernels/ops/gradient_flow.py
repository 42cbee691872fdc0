"""Instructions to training: where gradients stop or have a rule of their own, and what moves.

A ModeChoice is where training computes something else than evaluation (offline/modes.py).

Forward   StopGradient: y = x;  Cotangent: dy = y, in name only;  Redirect: z = y;
          MovedBuffer: y = old, or in training y = new, which replaces old (offline/buffers.py)
          ModeChoice: y = the first input, or in training the second
Backward  StopGradient, Cotangent: none.  Redirect of y, dy, x and dx, where nodes make dx of dy:
          the gradient of z goes to y, and x gets what these nodes make of it instead of dy.
          ModeChoice: dy, for the second input
Error     none

    Before   dy = Cotangent(y); dx = Neg(dy); z = Redirect(y, dy, x, dx)
    After    dx = Neg(z_grad), a part of the gradient of x

`engine.trainer.pytorch.export` writes them: `detach()` and `no_grad` become a StopGradient, and an
`autograd.Function` becomes a Redirect of its stopped output, with the nodes of its `backward`
between the Cotangent and the Redirect.  A buffer that `forward` changes becomes a MovedBuffer.  For
all other runtimes, they are functions of the model that copy their first input.
"""

from __future__ import annotations

from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.op import OURS, Grad, Op
from engine.kernels.vocabulary.shape_rules import same_as


def _redirected(grad: Grad, dz: str) -> tuple[str | None, ...]:
    # The nodes between dy and dx are the backward function: they run again on the real gradient.
    dx = grad.replay(grad.x(3), {grad.x(1): dz}) if grad.wants(2) else None
    return dz, None, dx, None


def _chosen(grad: Grad, dy: str) -> tuple[str | None, ...]:
    return None, dy


_RULES = {"Redirect": _redirected, "ModeChoice": _chosen}


def _op(name: str, count: int, no_gradient: tuple[int, ...], *, is_acting: bool = False) -> Op:
    return Op(
        name=name,
        domain=OURS,
        inputs=(count, count),
        outputs=1,
        infer=same_as(0),
        expand=lambda nodes: (nodes.x(0),),
        becomes="",
        grad=_RULES.get(name),
        tells_gradient=name == "Redirect",
        no_gradient=frozenset(no_gradient),
        is_identity=True,
        is_acting=is_acting,
        samples=Samples.ELEMENTWISE,
    )


OPS = (
    _op("StopGradient", 1, (0,)),
    _op("Cotangent", 1, (0,)),
    _op("Redirect", 4, (1, 3)),
    _op("MovedBuffer", 2, (0, 1), is_acting=True),
    _op("ModeChoice", 2, (0,)),
)
