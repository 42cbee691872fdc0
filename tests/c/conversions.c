/* Conversions and roundings of helpers.c, which a 32-bit ARM has no instructions for: results,
 * in bits, of numbers that a plain recurrence makes.  Without HELPERS the compiler's own. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef HELPERS
#define copy memcpy
#define NO_LIBRARY_CALL() __asm__ volatile("")
#include "helpers.c"
#endif
/* Android's names; others are called by the casts themselves. */
#ifdef EDGEGRAD_BIONIC
#define TO_DOUBLE(v) __floatdidf(v)
#define TO_DOUBLE_UNSIGNED(v) __floatundidf(v)
#define TO_FLOAT(v) __floatdisf(v)
#define TO_FLOAT_UNSIGNED(v) __floatundisf(v)
#define TRUNCATE(x) __fixdfdi(x)
#define TRUNCATE_FLOAT(x) __fixsfdi(x)
#else
#define TO_DOUBLE(v) (double)(v)
#define TO_DOUBLE_UNSIGNED(v) (double)(v)
#define TO_FLOAT(v) (float)(v)
#define TO_FLOAT_UNSIGNED(v) (float)(v)
#define TRUNCATE(x) (int64_t)(x)
#define TRUNCATE_FLOAT(x) (int64_t)(x)
#endif
#ifdef HELPERS
#define ROUND(x) roundeven(x)
#define ROUND_FLOAT(x) roundevenf(x)
#else
#define ROUND(x) rint(x)
#define ROUND_FLOAT(x) rintf(x)
#endif

static uint64_t state = 1;

static uint64_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state ^ state >> 29;
}

static void print_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    printf(" %016llx", (unsigned long long)bits);
}

static void print_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    printf(" %08x", (unsigned)bits);
}

static void print_roundings(double x)
{
    print_double(floor(x));
    print_float(floorf((float)x));
    print_float(ROUND_FLOAT((float)x));
    print_double(ROUND(x));
}

int main(void)
{
    static const double odd[] = {0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -1e-30,
                                 8388607.5, -8388607.5, 4503599627370495.5, -4503599627370495.5,
                                 1e300, -1e300, INFINITY, -INFINITY};
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++)
        print_roundings(odd[i]);
    for (int i = 0; i < 4000; i++) {
        volatile int64_t v = (int64_t)draw() >> draw() % 64;
        volatile uint64_t u = draw() >> draw() % 64;
        volatile double x = (double)((int64_t)draw() >> 11) / (double)(1ull << draw() % 60);
        volatile float f = (float)x;
        print_double(TO_DOUBLE(v));
        print_double(TO_DOUBLE_UNSIGNED(u));
        print_float(TO_FLOAT(v));
        print_float(TO_FLOAT_UNSIGNED(u));
        printf(" %lld %lld", (long long)TRUNCATE(x), (long long)TRUNCATE_FLOAT(f));
        print_roundings(x);
        printf("\n");
    }
    return 0;
}
