/* Small products of 8-bit integers of every size and kind by kernels, beside plain loops.
 *
 * words.h has the layout INTEGER_GEMM_* of the words, the names of the kernels, by the types of
 * activations and of results, and TURNS: 1 where the CPU multiplies by squares.  Prints how many
 * products were made and a number that is made of all their results, and fails at the first one
 * that is wrong, in Y or beyond.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "words.h"

typedef int64_t word;
typedef void kernel(const word *arguments, word tid, word threads);
kernel PRODUCT_u8_u8, PRODUCT_u8_i32, PRODUCT_i8_i8, PRODUCT_i8_i32;

enum { ROWS = 20, COLUMNS = 48, DEPTH = 72, BLOCK = 12, OPERANDS = 10, TILE = 6, SQUARE = 8 };

static int8_t w[DEPTH * COLUMNS], packed[DEPTH * COLUMNS], turned[DEPTH * 16];
static uint8_t x[ROWS * DEPTH], *end; /* of memory that may be read */
static int32_t sums[COLUMNS], bias[COLUMNS], shift[COLUMNS], work[(BLOCK + 1) * COLUMNS];
static int32_t y[ROWS * COLUMNS + 16], wanted[ROWS * COLUMNS];
static float factor[COLUMNS];
static uint32_t seen = 2166136261u, state = 1; /* seen: by FNV-1a, of results */

static int32_t draw(int32_t low, int32_t high)
{
    state = state * 1664525u + 1013904223u;
    return low + (int32_t)((state >> 8) % (uint32_t)(high - low + 1));
}

static int32_t take(const void *from, int is_signed, int at)
{
    return is_signed ? ((const int8_t *)from)[at] : ((const uint8_t *)from)[at];
}

static int product(int is_signed, int is_whole, int m, int n, int k, int is_shifted)
{
    const int least = is_signed ? -128 : 0, most = least + 255, zero = least + 97;
    const uint8_t point = (uint8_t)zero;
    const int room = (int)sizeof(y), groups = (k + 3) / 4, offset = least + 120;
    uint8_t *place = end - m * k;
    memset(y, 0x55, sizeof(y));
    memset(packed, 0, sizeof(packed));
    for (int i = 0; i < m * k; i++)
        place[i] = x[i];
    for (int j = 0; j < n; j++) {
        sums[j] = 0;
        shift[j] = is_shifted ? draw(-127, 127) : 0;
        for (int p = 0; p < k; p++) {
            const int8_t factor_of = w[p * COLUMNS + j];
            sums[j] += factor_of;
            packed[(j / 16 * groups + p / 4) * 64 + j % 16 * 4 + p % 4] = factor_of;
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            int32_t sum = bias[j];
            for (int p = 0; p < k; p++)
                sum += (take(x, is_signed, i * k + p) - zero) * (w[p * COLUMNS + j] - shift[j]);
            if (!is_whole) {
                const float level = rintf((float)sum * factor[j]) + (float)offset;
                sum = level < (float)least ? least : level > (float)most ? most : (int32_t)level;
            }
            wanted[i * n + j] = sum;
        }
    word arguments[OPERANDS + INTEGER_GEMM_WORDS] = {
        (word)(intptr_t)place, (word)(intptr_t)y, (word)(intptr_t)packed, (word)(intptr_t)sums,
        (word)(intptr_t)&point, (word)(intptr_t)bias, (word)(intptr_t)factor,
        (word)(intptr_t)work, (word)(intptr_t)shift, (word)(intptr_t)turned};
    word *g = arguments + OPERANDS;
    g[INTEGER_GEMM_M] = m, g[INTEGER_GEMM_N] = n, g[INTEGER_GEMM_K] = k;
    g[INTEGER_GEMM_SAMPLES] = 1, g[INTEGER_GEMM_ROWS] = BLOCK, g[INTEGER_GEMM_MODE] = BIAS;
    g[INTEGER_GEMM_STARTS] = is_shifted ? BLOCK + 1 : 1;
    g[INTEGER_GEMM_TURNS] = TURNS && m >= TILE && k >= SQUARE;
    g[INTEGER_GEMM_GRID_ROWS] = g[INTEGER_GEMM_GRID_COLUMNS] = 1;
    g[INTEGER_GEMM_LOW] = least, g[INTEGER_GEMM_HIGH] = most, g[INTEGER_GEMM_OFFSET] = offset;
    (is_signed ? is_whole ? PRODUCT_i8_i32 : PRODUCT_i8_i8
               : is_whole ? PRODUCT_u8_i32 : PRODUCT_u8_u8)(arguments, 0, 1);
    const int size = is_whole ? 4 : 1;
    for (int i = 0; i < m * n; i++) {
        const int32_t result = is_whole ? y[i] : take(y, is_signed, i);
        seen = (seen ^ (uint32_t)result) * 16777619u;
        if (result != wanted[i]) {
            printf("%s activations, %dx%dx%d%s: result %d is %d, not %d\n",
                   is_signed ? "i8" : "u8", m, n, k, is_shifted ? ", shifts" : "", i, result,
                   wanted[i]);
            return 0;
        }
    }
    for (int i = m * n * size; i < room; i++)
        if (((uint8_t *)y)[i] != 0x55) {
            printf("%dx%dx%d: byte %d is written\n", m, n, k, i);
            return 0;
        }
    return 1;
}

int main(void)
{
    static const int depths[] = {1, 3, 4, 7, 8, 9, 12, 15, 16, 20, 23, 31, 32, 63, 68, 71};
    static const int columns[] = {1, 15, 16, 17, 40};
    int count = 0;
    const size_t page = 1 << 16;
    uint8_t *map = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page, page, PROT_NONE))
        return 2;
    end = map + page;
    for (int i = 0; i < ROWS * DEPTH; i++)
        x[i] = (uint8_t)draw(0, 255);
    for (int i = 0; i < DEPTH * COLUMNS; i++)
        w[i] = (int8_t)draw(-128, 127);
    for (int i = 0; i < 4 * DEPTH; i++) /* the ends, which instructions that saturate get wrong */
        x[i] = 255, w[i] = -128;
    for (int j = 0; j < COLUMNS; j++)
        bias[j] = draw(-5000, 5000), factor[j] = (float)draw(1, 1000) / 65536;
    for (int kind = 0; kind < 8; kind++)
        for (int m = 1; m <= ROWS; m++)
            for (int n = 0; n < 5; n++)
                for (int k = 0; k < 16; k++, count++)
                    if (!product(kind & 1, kind >> 1 & 1, m, columns[n], depths[k], kind >> 2))
                        return 1;
    printf("%d products, %08x\n", count, seen);
    return 0;
}
