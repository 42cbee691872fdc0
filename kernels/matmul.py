from engine.kernels._contract import block, pack_cols, pack_rows
from engine.kernels._kernel import Body, inline, kernel, off, udiv, imin, pick
from engine.kernels._target import Target
@kernel("a:T* b:T* c:T* bias:T* reset:b1* work:T* has_reset:i64 work_stride:i64 g:i64[]")
def gemm(target: Target, T: str, trans_a: int, trans_b: int) -> Body:
    pack = pack_cols(target, T) if trans_b else pack_rows(target, T)
    width = target.nv * target.lanes(4 if T == "f32" else 8)

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        lda = g[3]
        if trans_a:
            return off(a, k0 * lda + i0), lda
        return off(a, i0 * lda + k0), lda

    @inline
    def pack_b(b, into, g, k0, kb, j0, nb):
        ldb = g[4]
        if trans_b:
            pack(off(b, j0 * ldb + k0), ldb, into, kb, nb)
        else:
            pack(off(b, k0 * ldb + j0), ldb, into, kb, nb)
        return into, kb * width, width

    run = block(target, T, trans_a, fill_a, pack_b)

    def body(a, b, c, bias, reset, work, has_reset, work_stride, g, tid, nthreads):
        m, n, k = g[0], g[1], g[2]
        mode, mt, nt, kc, nc = g[6], g[7], g[8], g[9], g[10]
        if has_reset != 0:
            if reset[0] == 0:
                mode = mode | 1
        if tid < mt * nt:
            tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
            mstep = udiv(m + mt - 1, mt)
            nstep = udiv(udiv(n + width - 1, width) + nt - 1, nt) * width
            m0, n0 = imin(tm * mstep, m), imin(tn * nstep, n)
            m1, n1 = imin(m0 + mstep, m), imin(n0 + nstep, n)
            run(a, b, c, g[5], bias, off(work, tid * work_stride), g, m0, m1, n0, n1, k, kc, nc, mode)

    return body
OPS = ()
KERNELS = (gemm,)
