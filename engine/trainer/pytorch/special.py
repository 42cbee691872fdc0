"""Special functions that torch's exporter lacks, by series and approximations of themselves.

Each rule returns what the function does, with the same gradients, or None where it is not needed.
`engine.trainer.pytorch.functions` calls them while a module is traced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.trainer.pytorch.shorthand import Rule

# Of erfinv(x) / x as polynomials of w = -log(1 - x^2), from the highest power down: of w - 2.5 for
# w < 5, and of sqrt(w) - 3.  Source: Giles, "Approximating the erfinv function", 2010.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_TAILS = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
# The asymptotic series of digamma, in powers of 1 / x^2: B(2k) / 2k.
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)  # likewise
_SHIFT = 8  # from where on the series is used: its error is below 1e-14 there
_SQUARINGS = 10  # of a matrix exponential: for matrices whose norm is up to 512


def _evaluate(coefficients: Sequence[float], x: Any) -> Any:
    """Return a polynomial by Horner's rule."""
    y = coefficients[0]
    for c in coefficients[1:]:
        y = y * x + c
    return y


def _invert_erf(torch: Any, x: Any) -> Any:
    """Return erfinv(x), with the gradient sqrt(pi) / 2 exp(erfinv(x)^2)."""
    own = x.detach()
    is_inner = own.abs() < 1
    inner = torch.where(is_inner, own, 0.0)
    w = -((1 - inner) * (1 + inner)).log()
    tails = _evaluate(_TAILS, w.clamp(min=5).sqrt() - 3)
    y = torch.where(w < 5, _evaluate(_CENTRE, w - 2.5), tails) * inner
    if x.dtype == torch.float64:  # two of Newton's steps from 1e-7 to all digits
        for _ in range(2):
            y = y - (y.erf() - inner) * (math.sqrt(math.pi) / 2) * (y * y).exp()
    slope = (math.sqrt(math.pi) / 2) * (y * y).exp()
    edge = torch.where(own.abs() == 1, own * math.inf, math.nan)
    return torch.where(is_inner, y, edge) + (x - own) * slope


def _write_erfinv(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x = args[0] if args else kwargs["input"]
    return _invert_erf(torch, x) if x.is_floating_point() else None


def _write_digamma(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the derivative of log gamma: psi(x) = psi(x + 1) - 1 / x, and its series.

    Of numbers below 0.5 it is psi(1 - x) - pi / tan(pi x).
    """
    x = args[0] if args else kwargs["input"]
    if not x.is_floating_point():
        return None
    is_low = x < 0.5
    z = torch.where(is_low, 1 - x, x)
    y = sum((-1 / (z + k) for k in range(_SHIFT)), start=torch.zeros_like(z))
    z = z + _SHIFT
    square = 1 / (z * z)
    y = y + z.log() - 0.5 / z - square * _evaluate(_DIGAMMA[::-1], square)
    angle = math.pi * torch.where(is_low, x - x.detach().round(), 0.25)
    return torch.where(is_low, y - math.pi * angle.cos() / angle.sin(), y)


def _write_lgamma(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return log |gamma(x)|, as log gamma(x + 1) = log gamma(x) + log x, and by Stirling's series.

    Of numbers below 0.5 it is log(pi / |sin(pi x)|) - log gamma(1 - x).
    """
    x = args[0] if args else kwargs["input"]
    if not x.is_floating_point():
        return None
    is_low = x < 0.5
    z = torch.where(is_low, 1 - x, x)
    is_small = z < _SHIFT
    product = small = torch.where(is_small, z, 1.0)
    for k in range(1, _SHIFT):
        product = product * (small + k)
    product = torch.where(is_small, product, 1.0)
    z = torch.where(is_small, z + _SHIFT, z)
    square = 1 / (z * z)
    y = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) - product.log()
    y = y + _evaluate(_LGAMMA[::-1], square) / z
    angle = math.pi * torch.where(is_low, x - x.detach().round(), 0.25)
    return torch.where(is_low, math.log(math.pi) - angle.sin().abs().log() - y, y)


def _write_hypot(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, y = {**dict(zip(("input", "other"), args, strict=False)), **kwargs}.values()
    return (x * x + y * y).sqrt()


def _write_matrix_exp(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return exp(A) = exp(A / 2^s)^(2^s), s so that the norm of A / 2^s is at most 0.5."""
    a = args[0] if args else kwargs["input"]
    if not a.is_floating_point():
        return None
    norm = a.detach().abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    rounds = (norm.clamp(min=0.5).log2() + 1).ceil().clamp(max=_SQUARINGS)
    a = a * torch.exp2(-rounds)
    y = one = torch.eye(a.shape[-1], dtype=a.dtype)
    for k in range(15 if a.dtype == torch.float64 else 9, 0, -1):  # the rest is below its rounding
        y = one + (a @ y if y is not one else a) / k
    for k in range(_SQUARINGS):
        y = torch.where(rounds > k, y @ y, y)
    return y


RULES: dict[str, Rule] = {
    **dict.fromkeys(("erfinv", "special_erfinv"), _write_erfinv),
    **dict.fromkeys(("digamma", "special_digamma", "special_psi"), _write_digamma),
    **dict.fromkeys(("lgamma", "special_gammaln"), _write_lgamma),
    "hypot": _write_hypot,
    **dict.fromkeys(("matrix_exp", "linalg_matrix_exp"), _write_matrix_exp),
}
