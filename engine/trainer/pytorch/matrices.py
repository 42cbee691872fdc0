"""Inverses, determinants and factors of small matrices, which torch's exporter lacks.

A matrix is eliminated row by row, without a gradient.  The answer then gets the change that a
change dA of the matrix makes, where dA = A - detach(A) is 0 and has a gradient:

    inverse     B of A           B - B dA B
    solution    X of A X = Y     B Y - B dA B Y
    Cholesky    L L' = A         L + L half(B dA B'), B of L
    QR          Q R = A          see `_write_qr`
    determinant                  the product of the pivots, differentiated as it is

half(M) is the lower triangle of M with half of its diagonal.  Of a singular matrix, the elements
are infinities or NaN, where torch raises an error.

Each rule returns what the function does, with the same gradients, or None where it is not needed.
`engine.trainer.pytorch.functions` calls them while a module is traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.trainer.pytorch.shorthand import Rule, read_arguments

MOST_ROWS = 64  # each has about a dozen nodes


def _count_rows(a: Any, kind: str) -> int:
    """Return the number of columns of a matrix, or of rows if these are fewer.

    Raises:
        UnsupportedOpError: it depends on the example, or is above MOST_ROWS.
    """
    sizes = a.shape[-2:]
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedOpError(
            f"{kind}: an axis of a matrix {list(a.shape)} is the batch or may have any size; "
            "supported: matrices of fixed size in the last two axes"
        )
    if min(sizes) > MOST_ROWS:
        raise UnsupportedOpError(
            f"{kind}: a matrix has {sizes[0]} rows and {sizes[1]} columns; supported: up to "
            f"{MOST_ROWS}, because each is eliminated by nodes of its own"
        )
    return int(min(sizes))


def _invert(torch: Any, a: Any, is_triangle: bool = False) -> Any:
    """Return the inverse of matrices [..., n, n] without a gradient, by Gauss and Jordan.

    The largest element of a column in the rows that are left is its pivot, or the one on the
    diagonal of a lower triangle.
    """
    n, a = a.shape[-1], a.detach()
    work = torch.cat([a, torch.eye(n, dtype=a.dtype).expand(a.shape)], -1)
    rows = torch.arange(n).unsqueeze(-1)
    is_left, places = rows >= 0, []
    for k in range(n):
        column = work.narrow(-1, k, 1)
        is_pivot = rows == k
        if not is_triangle:
            place = torch.where(is_left, column.abs(), -1.0).argmax(-2, keepdim=True)
            is_pivot = rows == place
            is_left = is_left & ~is_pivot
            places.append(place)
        row = torch.where(is_pivot, work, 0.0).sum(-2, keepdim=True)
        row = row / row.narrow(-1, k, 1)
        work = torch.where(is_pivot, row, work - column * row)
    work = work.narrow(-1, n, n)
    return work if is_triangle else work.gather(-2, torch.cat(places, -2).expand(a.shape))


def _invert_triangle(torch: Any, a: Any, is_upper: bool) -> Any:
    return _invert(torch, a.mT, True).mT if is_upper else _invert(torch, a, True)


def _solve(a: Any, inverse: Any, y: Any) -> Any:
    """Return x of a x = y [..., n, k].  inverse: of a, without a gradient."""
    x = inverse @ y
    return x - inverse @ ((a - a.detach()) @ x.detach())


def _write_inverse(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("A check_errors", args, kwargs)
    a = given["A"] if given["A"] is not None else given["input"]
    n = _count_rows(a, "inverses")
    return _solve(a, _invert(torch, a), torch.eye(n, dtype=a.dtype))


def _write_solution(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return X of A X = B, or of X A = B; a row of B for each matrix may be a vector."""
    given = read_arguments("A B left", args, kwargs, left=True)
    a = given["A"] if given["A"] is not None else given["input"]
    b = given["B"] if given["B"] is not None else given["other"]
    _count_rows(a, "solve")
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if is_vector else b
    if not given["left"]:
        a, b = a.mT, b.mT
    x = _solve(a, _invert(torch, a), b)
    x = x if given["left"] else x.mT
    return x.squeeze(-1) if is_vector else x


def _with_status(write: Rule, kind: str) -> Rule:
    """Return the rule for a function that also returns a status for each matrix, which is 0."""

    def write_both(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        made = write(torch, args, kwargs)
        a = args[0] if args else kwargs.get("A", kwargs.get("input"))
        status = torch.zeros(a.shape[:-2], dtype=torch.int32)
        return getattr(torch.return_types, kind)((made, status))

    return write_both


def _solve_triangle(
    torch: Any, a: Any, b: Any, is_upper: bool, is_unit: bool = False, is_left: bool = True
) -> Any:
    """Return X of A X = B or of X A = B.  A is a triangle; its other half is not read."""
    n = _count_rows(a, "triangular solves")
    off = 1 if is_unit else 0
    a = a.triu(off) if is_upper else a.tril(-off)
    a = a + torch.eye(n, dtype=a.dtype) if is_unit else a
    inverse = _invert_triangle(torch, a, is_upper)
    return _solve(a, inverse, b) if is_left else _solve(a.mT, inverse.mT, b.mT).mT


def _write_triangular(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("A B upper left unitriangular", args, kwargs, left=True)
    a = given["A"] if given["A"] is not None else given["input"]
    return _solve_triangle(
        torch, a, given["B"], given["upper"], given["unitriangular"], given["left"]
    )


def _write_old_triangular(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("input A upper transpose unitriangular", args, kwargs, upper=True)
    a, is_upper = given["A"], given["upper"]
    turned, is_turned = (a.mT, not is_upper) if given["transpose"] else (a, is_upper)
    x = _solve_triangle(torch, turned, given["input"], is_turned, given["unitriangular"])
    return torch.return_types.triangular_solve((x, a.clone()))


def _write_cholesky(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the triangle L of L L' = A, by columns; values of A are read below the diagonal.

    The gradient of A is symmetric, as torch's is.
    """
    given = read_arguments("input upper", args, kwargs)
    a = given["input"] if given["input"] is not None else given["A"]
    n, is_upper = _count_rows(a, "Cholesky factors"), bool(given["upper"])
    read = (a.mT if is_upper else a).detach()
    work, rows = read.tril() + read.tril(-1).mT, torch.arange(n).unsqueeze(-1)
    columns = []
    for k in range(n):
        column = work.narrow(-1, k, 1)
        column = torch.where(rows >= k, column / column.narrow(-2, k, 1).sqrt(), 0.0)
        columns.append(column)
        work = work - column * column.mT
    factor = torch.cat(columns, -1)
    inverse = _invert(torch, factor, True)
    change = a - a.detach()
    inner = inverse @ (0.5 * (change + change.mT)) @ inverse.mT
    factor = factor + factor @ (inner.tril(-1) + inner.diagonal(0, -2, -1).diag_embed() * 0.5)
    return factor.mT if is_upper else factor


def _write_cholesky_solution(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return X of L L' X = B.  As in torch, the gradient of L is of all of L, the value is not."""
    given = read_arguments("input L upper", args, kwargs)
    b = given["input"] if given["input"] is not None else given["B"]
    factor = given["L"] if given["L"] is not None else given["input2"]
    factor = factor.mT if given["upper"] else factor
    _count_rows(factor, "solve")
    inverse = _invert_triangle(torch, factor, False)
    whole = factor.detach().tril() + (factor - factor.detach())
    return _solve(whole @ whole.mT, inverse.mT @ inverse, b)


def _write_cholesky_inverse(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("L upper", args, kwargs)
    factor = given["L"] if given["L"] is not None else given["input"]
    one = torch.eye(_count_rows(factor, "inverses"), dtype=factor.dtype)
    return _write_cholesky_solution(torch, (one, factor, given["upper"]), {})


def _list_pivots(torch: Any, a: Any) -> tuple[list[Any], Any]:
    """Return the n pivots [...] of matrices [..., n, n], and the sign of their order [...].

    The pivots are the largest of all elements that are left, so that a singular matrix has zeros
    last, and the determinant has its gradient there, too.
    """
    n, work = _count_rows(a, "determinants"), a
    rows, columns = torch.arange(n).unsqueeze(-1), torch.arange(n)
    is_left, sign, pivots = torch.ones(n, n, dtype=torch.bool), torch.ones(()), []
    places: list[list[Any]] = [[], []]
    for _ in range(n):
        sizes = torch.where(is_left, work.detach().abs(), -1.0)
        place = sizes.flatten(-2).argmax(-1, keepdim=True).unsqueeze(-1)
        places[0].append(place // n)
        places[1].append(place % n)
        is_row, is_column = rows == place // n, columns == place % n
        row = torch.where(is_row, work, 0.0).sum(-2, keepdim=True)
        column = torch.where(is_column, work, 0.0).sum(-1, keepdim=True)
        pivot = torch.where(is_column, row, 0.0).sum(-1, keepdim=True)
        pivots.append(pivot.squeeze(-1).squeeze(-1))
        is_left = is_left & ~is_row & ~is_column
        # Where all that is left is 0, there is nothing to eliminate.
        step = column / torch.where(pivot == 0, 1.0, pivot) * row
        work = work - torch.where(is_left, step, 0.0)
    is_later = rows < columns
    for axis in places:
        order = torch.cat(axis, -2)  # [..., n, 1]
        swaps = (is_later & (order > order.mT)).sum((-2, -1))
        sign = sign * (1 - 2 * (swaps % 2))
    return pivots, sign.to(a.dtype)


def _write_determinant(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    pivots, product = _list_pivots(torch, next(iter((*args, *kwargs.values()))))
    for pivot in pivots:
        product = product * pivot
    return product


def _write_sign_and_log(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    pivots, sign = _list_pivots(torch, next(iter((*args, *kwargs.values()))))
    pivots = torch.stack(pivots, -1)
    return torch.return_types.linalg_slogdet(
        (sign * pivots.detach().sign().prod(-1), pivots.abs().log().sum(-1))
    )


def _write_log_determinant(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    sign, size = _write_sign_and_log(torch, args, kwargs)
    return torch.where(sign < 0, torch.nan, size)


def _compute_reflections(torch: Any, a: Any) -> tuple[Any, Any]:
    """Return Q [..., m, n] and R [..., n, n] of matrices [..., m, n], by Householder's reflections.

    Signs are LAPACK's: a column with zeros alone below the diagonal stays.
    """
    m, n = a.shape[-2:]
    one = torch.eye(m, dtype=a.dtype).expand(*a.shape[:-2], m, m)
    work, rows = torch.cat([a, one], -1), torch.arange(m).unsqueeze(-1)
    for k in range(min(n, m - 1)):
        x = torch.where(rows >= k, work.narrow(-1, k, 1), 0.0)
        head = x.narrow(-2, k, 1)
        is_turned = torch.where(rows > k, x, 0.0).abs().amax(-2, keepdim=True) > 0
        norm = (x * x).sum(-2, keepdim=True).sqrt()
        v = torch.where(rows == k, head + torch.where(head < 0, -norm, norm), x)
        square = torch.where(is_turned, (v * v).sum(-2, keepdim=True), 1.0)
        work = work - torch.where(is_turned, 2 * v / square, 0.0) @ (v.mT @ work)
    return work.narrow(-1, n, m).mT.narrow(-1, 0, n), work.narrow(-1, 0, n).narrow(-2, 0, n).triu()


def _write_qr(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return Q and R of A.  A change dA changes Q by Q W + (1 - Q Q') dA B, and R by (X - W) R.

    B is the inverse of R, X = Q' dA B, and W is X below the diagonal and -X' above.  Columns of
    a wide A after its first square are Q times the same columns of R.
    """
    given = read_arguments("A mode", args, kwargs, mode="reduced")
    a = given["A"] if given["A"] is not None else given["input"]
    m, n = a.shape[-2:]
    if given["mode"] != "reduced" and (given["mode"] != "complete" or m != n):
        return None
    n = _count_rows(a, "QR factors")
    wide, a = a, a.narrow(-1, 0, n)
    q, r = _compute_reflections(torch, a.detach())
    change = (a - a.detach()) @ _invert_triangle(torch, r, True)
    x = q.mT @ change
    w = x.tril(-1)
    w = w - w.mT
    q, r = q + q @ w + (change - q @ x), r + (x - w) @ r
    if wide.shape[-1] > n:
        r = torch.cat([r, q.mT @ wide.narrow(-1, n, wide.shape[-1] - n)], -1)
    return torch.return_types.linalg_qr((q, r))


def _write_power(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a negative power of a matrix, as one of its inverse."""
    given = read_arguments("A n", args, kwargs)
    a = given["A"] if given["A"] is not None else given["input"]
    if given["n"] >= 0:
        return None
    return torch.linalg.matrix_power(_write_inverse(torch, (a,), {}), -given["n"])


def _write_chain(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the product of matrices from the left: the best order depends on the batch."""
    factors = args[0] if args and isinstance(args[0], Sequence) else args or kwargs["tensors"]
    product, *more = factors
    for factor in more:
        product = product @ factor
    return product


RULES: dict[str, Rule] = {
    **dict.fromkeys(("inverse", "linalg_inv"), _write_inverse),
    "linalg_inv_ex": _with_status(_write_inverse, "linalg_inv_ex"),
    "linalg_solve": _write_solution,
    "linalg_solve_ex": _with_status(_write_solution, "linalg_solve_ex"),
    "linalg_solve_triangular": _write_triangular, "triangular_solve": _write_old_triangular,
    **dict.fromkeys(("cholesky", "linalg_cholesky"), _write_cholesky),
    "linalg_cholesky_ex": _with_status(_write_cholesky, "linalg_cholesky_ex"),
    "cholesky_solve": _write_cholesky_solution, "cholesky_inverse": _write_cholesky_inverse,
    **dict.fromkeys(("det", "linalg_det"), _write_determinant),
    **dict.fromkeys(("slogdet", "linalg_slogdet"), _write_sign_and_log),
    **dict.fromkeys(("matrix_power", "linalg_matrix_power"), _write_power),
    "logdet": _write_log_determinant, "linalg_qr": _write_qr,
    **dict.fromkeys(("linalg_multi_dot", "chain_matmul"), _write_chain),
}  # fmt: skip
