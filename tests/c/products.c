/* Small products of every size and mode by kernels of matrix products, beside plain loops.
 *
 * words.h has the layout GEMM_* of the words, the names of the kernels, by which of A and B are
 * stored transposed, and ERROR, by which a sum may be wrong relative to the sum of absolute values.
 * bfloat16 and float16 hold all factors.  Prints how many products were made and a number that is
 * made of all bits of their results, and fails at the first element that is wrong, in C or beyond.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "words.h"

typedef int64_t word;
typedef void kernel(const word *arguments, word tid, word threads);
kernel PRODUCT_0_0, PRODUCT_0_1, PRODUCT_1_0;

enum { ACCUMULATE = 1, BIAS = 2, RELU = 4, ROOM = 2048, COLUMNS = 16 };

static float a[ROOM], b[ROOM], c[ROOM], bias[ROOM], work[16 * ROOM];
static double wanted[ROOM], size[ROOM];
static uint32_t seen = 2166136261u; /* by FNV-1a, of words */

static int product(int trans_a, int trans_b, int m, int n, int k, int kc, int mode)
{
    word arguments[8 + GEMM_WORDS] = {
        (word)(intptr_t)a, (word)(intptr_t)b, (word)(intptr_t)c, (word)(intptr_t)bias, 0,
        (word)(intptr_t)work};
    word *g = arguments + 8;
    g[GEMM_M] = m, g[GEMM_N] = n, g[GEMM_K] = k, g[GEMM_MODE] = mode;
    g[GEMM_LDA] = trans_a ? m : k, g[GEMM_LDB] = trans_b ? k : n, g[GEMM_LDC] = n;
    g[GEMM_GRID_BATCH] = g[GEMM_GRID_ROWS] = g[GEMM_GRID_COLUMNS] = 1;
    g[GEMM_BATCH_0] = g[GEMM_BATCH_1] = g[GEMM_BATCH_2] = 1;
    g[GEMM_KC] = k < kc ? k : kc, g[GEMM_NC] = COLUMNS;
    for (int i = 0; i < ROOM; i++)
        wanted[i] = c[i] = i % 7 - 3, size[i] = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = (mode & ACCUMULATE ? c[i * n + j] : 0) + (mode & BIAS ? bias[j] : 0);
            for (int p = 0; p < k; p++) {
                double one = (double)(trans_a ? a[p * m + i] : a[i * k + p]) *
                             (trans_b ? b[j * k + p] : b[p * n + j]);
                sum += one, size[i * n + j] += fabs(one);
            }
            wanted[i * n + j] = mode & RELU && sum < 0 ? 0 : sum;
        }
    (trans_a ? PRODUCT_1_0 : trans_b ? PRODUCT_0_1 : PRODUCT_0_0)(arguments, 0, 1);
    for (int i = 0; i < ROOM; i++) {
        uint32_t bits;
        memcpy(&bits, &c[i], 4);
        seen = (seen ^ bits) * 16777619u;
        if (!(fabs(c[i] - wanted[i]) < 1e-5 + ERROR * size[i])) {
            printf("%d %d: %dx%dx%d, mode %d: element %d is %g, not %g\n", trans_a, trans_b, m, n,
                   k, mode, i, c[i], wanted[i]);
            return 0;
        }
    }
    return 1;
}

int main(void)
{
    int count = 0;
    for (int i = 0; i < ROOM; i++) {
        a[i] = (i * 37 % 101 - 50) / 64.0f;
        b[i] = (i * 53 % 97 - 48) / 64.0f;
        bias[i] = (i * 29 % 89 - 44) / 64.0f;
    }
    for (int stored = 0; stored < 3; stored++) {
        for (int m = 1; m <= 17; m++)
            for (int n = 1; n <= 17; n++)
                for (int k = 1; k <= 13; k += 1 + (m + n) % 2)
                    for (int mode = m % 2; mode < 8; mode += 3, count++)
                        if (!product(stored == 2, stored == 1, m, n, k, 8, mode))
                            return 1;
        for (int m = 1; m <= 16; m += 5)
            for (int k = 88; k <= 120; k += 1 + k % 3, count++)
                if (!product(stored == 2, stored == 1, m, 9 + m % 2, k, 112, 0))
                    return 1;
    }
    printf("%d products, %08x\n", count, (unsigned)seen);
    return 0;
}
