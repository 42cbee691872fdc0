"""Inverses, determinants and factors of small matrices: outputs and gradients are torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine.errors import UnsupportedOpError
from engine.trainer.pytorch import matrices
from engine.trainer.pytorch.export import export
from tests.torch.applied import Applied, export_as_in_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
linalg = torch.linalg


def make_definite(x: Any) -> Any:
    return x @ x.mT + torch.eye(x.shape[-2])


def test_inverses_and_solutions(tmp_path: Path) -> None:
    """Of one matrix for each row of the batch; some need rows in another order."""
    functions: dict[str, Callable[..., Any]] = {
        "inverse": lambda x, y: linalg.inv(x) + x.inverse() * 2,
        "with status": lambda x, y: linalg.inv_ex(x).inverse,
        "solution": lambda x, y: linalg.solve(x, y),
        "right": lambda x, y: torch.linalg.solve(x, y.mT, left=False),
        "vector": lambda x, y: linalg.solve(x, y[..., 0]),
        "negative power": lambda x, y: linalg.matrix_power(x, -2),
        "one matrix": lambda x, y: x @ linalg.inv(x[0]),
        "chain": lambda x, y: linalg.multi_dot([x[:, 0], x[0], x[1]]),
    }
    example = (torch.randn(3, 5, 5), torch.randn(3, 5, 2))
    export_as_in_torch(Applied(5, functions), example, tmp_path)


def test_factors_and_triangles(tmp_path: Path) -> None:
    solve = linalg.solve_triangular
    functions: dict[str, Callable[..., Any]] = {
        "lower": lambda x, y: linalg.cholesky(make_definite(x)),
        "upper": lambda x, y: linalg.cholesky(make_definite(x), upper=True),
        "half": lambda x, y: linalg.cholesky(make_definite(x) + x.triu(1)),
        "solution": lambda x, y: torch.cholesky_solve(y, linalg.cholesky(make_definite(x))),
        "inverse": lambda x, y: torch.cholesky_inverse(linalg.cholesky(make_definite(x))),
        "triangle": lambda x, y: solve(x + 3 * torch.eye(5), y, upper=False),
        "unit": lambda x, y: solve(x * 0.3, y.mT, upper=True, left=False, unitriangular=True),
        "square": lambda x, y: linalg.qr(x)[0] + linalg.qr(x)[1],
        "tall": lambda x, y: linalg.qr(x[..., :3])[0] @ linalg.qr(x[..., :3] * 2)[1],
        "wide": lambda x, y: linalg.qr(x[..., :3, :])[1],
    }
    example = (torch.randn(3, 5, 5), torch.randn(3, 5, 2))
    export_as_in_torch(Applied(5, functions), example, tmp_path)


def test_determinants(tmp_path: Path) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "value": lambda x: linalg.det(x) + x.det(),
        "sign": lambda x: linalg.slogdet(x)[0] * x.slogdet().logabsdet,
        "log": lambda x: torch.logdet(make_definite(x)),
    }
    export_as_in_torch(Applied(4, functions), torch.randn(6, 4, 4), tmp_path)


def test_the_determinant_of_a_singular_matrix_has_a_gradient() -> None:
    """The matrix of its cofactors; torch computes the gradient of a matrix nearby."""
    a = torch.randn(4, 4, dtype=torch.float64)
    a[:, 0] = 0
    given = a.clone().requires_grad_()
    matrices.RULES["det"](torch, (given,), {}).backward()
    cofactors = [linalg.det(torch.cat([(torch.arange(4) == i)[:, None], a[:, 1:]], 1))
                 for i in range(4)]  # fmt: skip
    assert given.grad is not None
    np.testing.assert_allclose(given.grad[:, 0], torch.stack(cofactors), rtol=1e-12)


def test_a_density_with_a_covariance(tmp_path: Path) -> None:
    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.root = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Any) -> Any:
            covariance = self.root @ self.root.mT + 0.1 * torch.eye(4)
            normal = torch.distributions.MultivariateNormal(torch.zeros(4), covariance)
            return normal.log_prob(self.body(x))

    export_as_in_torch(Density(), torch.randn(5, 6), tmp_path)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: linalg.inv(x.mT @ x), "up to 64"),
        (lambda x: linalg.inv(x @ x.mT), "matrices of fixed size"),
    ],
)
def test_other_sizes_are_refused(
    function: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        export(Applied(65, {"y": function}), torch.randn(3, 65), tmp_path / "net.onnx")
