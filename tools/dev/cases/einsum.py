"""Einsum: products, traces, sums, outer products, ellipses, stretched axes."""

from engine.tools.dev.cases.case import Case, f32


def _case(equation: str, *shapes: tuple[int, ...]) -> Case:
    ins = tuple(f32(*s) for s in shapes)
    return Case("Einsum", ins, {"equation": equation}, grad=tuple(range(len(ins))), tol=1e-5)


CASES = [
    _case("ij,jk->ik", (3, 4), (4, 5)),
    _case("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    _case("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    _case("bhqk,bkhd->bqhd", (2, 3, 4, 6), (2, 6, 3, 5)),
    _case("bij, bjk", (2, 3, 4), (2, 4, 5)),
    _case("ij->ji", (3, 4)),
    _case("ij->i", (3, 4)),
    _case("ii", (4, 4)),
    _case("bii->bi", (2, 3, 3)),
    _case("i,j->ij", (3,), (4,)),
    _case("i,i", (5,), (5,)),
    _case("ij,ij->ij", (3, 4), (3, 4)),
    _case("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    _case("...ij,jk->ik...", (2, 3, 4), (4, 5)),
    _case("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    _case("bij,bjk->bik", (1, 3, 4), (2, 4, 5)),
    _case("ij,k->i", (3, 4), (5,)),
]
