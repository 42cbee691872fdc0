"""The tiles of Winograd's algorithm and their transforms, as programs along one axis.

A tile of `out` outputs reads a window of out + 2 inputs d.  By the Toom-Cook algorithm with as many
points, the last one infinity:

    y = A' ((G g) * (B' d))        B' is square, G has 3 columns, A' `out` rows;  * is by elements

Large tiles have the points 0, +-2/3, +-3/2 and infinity, whose errors are half of what the usual
0, +-1, +-2 have.  Small ones have 0, +-1 and infinity: they take 16 multiplications for 4 outputs
where large ones take 36 for 16 and windows 9 for each.

Error     Rounding transformed windows and filters to bf16 has 1.6 to 1.9 times the error of
          rounding images and weights for direct products with small tiles, 4 to 5 times it with
          large ones: 1 % of |y| instead of a quarter of one (tests/ops/test_winograd.py).  So
          factors of 16 bits are of small tiles, and large ones multiply float32
Source    Lavin, Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308; points
          with small errors: Barabasz et al., "Error analysis and improving the accuracy of Winograd
          convolution", arXiv 1803.10986
"""

from __future__ import annotations

from dataclasses import dataclass

TAPS = 3  # of a filter, along an axis


@dataclass(frozen=True, slots=True)
class TileForm:
    """A size of tiles, and the programs of its transforms along an axis.

    out: outputs of a tile along an axis.
    window: B' d, of a window.  filter: G g, of a filter.  spread: A dy, of outputs.
    gather: G' m, of products.
    values: v = A' m, of products, each with what follows `{add}` stands for.
    transform: vector instructions counted for the transforms of one vector of channels of a tile,
        loads and stores included.
    pack: the same for the transform of one vector of filters for one channel, written to memory.
    """

    out: int
    window: str
    filter: str
    spread: str
    gather: str
    values: str
    transform: int
    pack: int

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis, and products."""
        return self.out + TAPS - 1

    @property
    def products(self) -> int:
        """Products of a tile, for each channel and filter."""
        return self.size**2

    @property
    def output(self) -> str:
        """A' m, of products."""
        stores = "; ".join(f"y{i}[] = v{i}" for i in range(self.out))
        return f"{self._products} -> {self.values.format(add='')} {stores}"

    @property
    def output_above(self) -> str:
        """The same plus a bias, and at least low."""
        stores = "; ".join(f"y{i}[] = where(v{i} < low, low, v{i})" for i in range(self.out))
        values = self.values.format(add=" + bias")
        return f"{self._products} bias[] low* -> {values} {stores}"

    @property
    def _products(self) -> str:
        return " ".join(f"m{i}[]" for i in range(self.size))


# P Q = 1 saves multiplications.
P, Q = 2 / 3, 3 / 2
P2, Q2 = P * P, Q * Q
SUM = P2 + Q2
AT_P, AT_Q = 1 / (2 * P2 * (P2 - Q2)), 1 / (2 * Q2 * (Q2 - P2))

LARGE = TileForm(
    out=4,
    window=f"""d0[] d1[] d2[] d3[] d4[] d5[] ->
        a = d4 - {Q2} * d2; b = {P} * (d3 - {Q2} * d1);
        c = d4 - {P2} * d2; d = {Q} * (d3 - {P2} * d1);
        t0[] = d0 + d4 - {SUM} * d2; t1[] = a + b; t2[] = a - b; t3[] = c + d; t4[] = c - d;
        t5[] = d1 + d5 - {SUM} * d3""",
    filter=f"""g0[] g1[] g2[] ->
        a = {AT_P} * g0 + {AT_P * P2} * g2; b = {AT_P * P} * g1;
        c = {AT_Q} * g0 + {AT_Q * Q2} * g2; d = {AT_Q * Q} * g1;
        t0[] = g0; t1[] = a + b; t2[] = a - b; t3[] = c + d; t4[] = c - d; t5[] = g2""",
    spread=f"""d0[] d1[] d2[] d3[] ->
        a = d0 + {P2} * d2; b = {P} * d1 + {P**3} * d3;
        c = d0 + {Q2} * d2; d = {Q} * d1 + {Q**3} * d3;
        t0[] = d0; t1[] = a + b; t2[] = a - b; t3[] = c + d; t4[] = c - d; t5[] = d3""",
    gather=f"""m0[] m1[] m2[] m3[] m4[] m5[] ->
        a = m1 + m2; b = m1 - m2; c = m3 + m4; d = m3 - m4;
        g0[] = m0 + {AT_P} * a + {AT_Q} * c; g1[] = {AT_P * P} * b + {AT_Q * Q} * d;
        g2[] = {AT_P * P2} * a + {AT_Q * Q2} * c + m5""",
    values=f"""a = m1 + m2; b = m1 - m2; c = m3 + m4; d = m3 - m4;
        v0 = m0 + a + c{{add}}; v1 = {P} * b + {Q} * d{{add}};
        v2 = {P2} * a + {Q2} * c{{add}}; v3 = {P**3} * b + {Q**3} * d + m5{{add}};""",
    transform=400,
    pack=700,
)
SMALL = TileForm(
    out=2,
    window="""d0[] d1[] d2[] d3[] ->
        t0[] = d0 - d2; t1[] = d1 + d2; t2[] = d2 - d1; t3[] = d3 - d1""",
    filter="""g0[] g1[] g2[] ->
        a = 0.5 * (g0 + g2); b = 0.5 * g1; t0[] = g0; t1[] = a + b; t2[] = a - b; t3[] = g2""",
    spread="d0[] d1[] -> t0[] = d0; t1[] = d0 + d1; t2[] = d0 - d1; t3[] = d1",
    gather="""m0[] m1[] m2[] m3[] ->
        a = 0.5 * (m1 + m2); g0[] = m0 + a; g1[] = 0.5 * (m1 - m2); g2[] = a + m3""",
    values="v0 = m0 + m1 + m2{add}; v1 = m1 - m2 + m3{add};",
    transform=150,
    pack=430,
)


def get_tiles(P: str) -> TileForm:
    """Return the tiles of a kernel whose factors are P; "" where they are of T."""
    return SMALL if P else LARGE
