/* Functions that compilers for small CPUs call where the CPU lacks an instruction.  With them, an
 * archive for 32-bit ARM needs no compiler library for whole numbers and no mathematical library,
 * nor does a library for 32-bit Android that ziglang links.  At the end, what Windows needs.
 * They are weak: a program's own functions replace them.
 *
 * Source: Run-time ABI for the Arm Architecture, 4.3: "The standard integer functions" and "The
 * long long helper functions". */

#define HELPER __attribute__((weak, used))
#define BASE __attribute__((pcs("aapcs"))) /* floats in registers for integers, on every CPU */

#if defined(__arm__) && (defined(EDGEGRAD_FREESTANDING) || defined(EDGEGRAD_BIONIC))

uint32_t __aeabi_uidiv(uint32_t n, uint32_t d);
uint64_t __aeabi_uidivmod(uint32_t n, uint32_t d);
void __aeabi_uldivmod(void);
BASE float __aeabi_l2f(int64_t value);
BASE float __aeabi_ul2f(uint64_t value);

static uint64_t magnitude(int64_t n)
{
    return n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
}

/* Divide by long division, a bit at a time; the quotient of a division by 0 has all bits set. */
__attribute__((used)) static uint64_t divide(uint64_t n, uint64_t d, uint64_t *rest)
{
    uint64_t quotient = 0, left = 0;
#ifdef __ARM_FEATURE_IDIV
    if (!(n >> 32) && !(d >> 32) && d) {
        uint32_t q = (uint32_t)n / (uint32_t)d;
        *rest = (uint32_t)n - q * (uint32_t)d;
        return q;
    }
#endif
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t carry = left >> 63;
        left = left << 1 | (n >> bit & 1);
        if (carry || left >= d) {
            left -= d;
            quotient |= (uint64_t)1 << bit;
        }
        NO_LIBRARY_CALL();
    }
    *rest = left;
    return quotient;
}

HELPER uint32_t __aeabi_uidiv(uint32_t n, uint32_t d)
{
    uint64_t rest;
    return (uint32_t)divide(n, d, &rest);
}

/* The names that LLVM has for Android. */
#ifdef EDGEGRAD_BIONIC
uint64_t __udivdi3(uint64_t n, uint64_t d);
uint64_t __umoddi3(uint64_t n, uint64_t d);
int64_t __divdi3(int64_t n, int64_t d);
int64_t __moddi3(int64_t n, int64_t d);

HELPER uint64_t __udivdi3(uint64_t n, uint64_t d)
{
    uint64_t rest;
    return divide(n, d, &rest);
}

HELPER uint64_t __umoddi3(uint64_t n, uint64_t d)
{
    uint64_t rest;
    divide(n, d, &rest);
    return rest;
}

HELPER int64_t __divdi3(int64_t n, int64_t d)
{
    uint64_t rest, quotient = divide(magnitude(n), magnitude(d), &rest);
    return (int64_t)((n < 0) != (d < 0) ? 0 - quotient : quotient);
}

HELPER int64_t __moddi3(int64_t n, int64_t d)
{
    uint64_t rest;
    divide(magnitude(n), magnitude(d), &rest);
    return (int64_t)(n < 0 ? 0 - rest : rest);
}
#endif

/* The quotient is the lower half of the result, the rest the upper. */
HELPER uint64_t __aeabi_uidivmod(uint32_t n, uint32_t d)
{
    uint64_t rest;
    uint32_t quotient = (uint32_t)divide(n, d, &rest);
    return rest << 32 | quotient;
}

/* The quotient is returned in r0 and r1, the rest in r2 and r3, as no function of C can. */
HELPER __attribute__((naked)) void __aeabi_uldivmod(void)
{
    __asm__("push {r4, lr}\n\t"
            "sub sp, sp, #16\n\t"
            "add r4, sp, #8\n\t"
            "str r4, [sp]\n\t"
            "bl %c0\n\t"
            "ldr r2, [sp, #8]\n\t"
            "ldr r3, [sp, #12]\n\t"
            "add sp, sp, #16\n\t"
            "pop {r4, pc}" : : "i"(divide));
}

/* Round to nearest, ties to even. */
static float round_magnitude(uint64_t rest)
{
    uint64_t lost = 0;
    int32_t exponent = 0;
    while (rest >> 24) {
        lost = (lost != 0) | (rest & 1) << 1; /* the bit after the last one, and any after that */
        rest >>= 1;
        exponent++;
    }
    if (lost > 1 && (lost > 2 || (rest & 1)))
        rest++;
    float power = 1, found = (float)(int32_t)rest;
    for (; exponent; exponent--)
        power *= 2;
    return found * power;
}

HELPER BASE float __aeabi_l2f(int64_t value)
{
    return value < 0 ? -round_magnitude(magnitude(value)) : round_magnitude((uint64_t)value);
}

HELPER BASE float __aeabi_ul2f(uint64_t value)
{
    return round_magnitude(value);
}

#if __ARM_FP & 8
BASE double __aeabi_l2d(int64_t value);
BASE double __aeabi_ul2d(uint64_t value);
BASE int64_t __aeabi_d2lz(double value);
BASE int64_t __aeabi_f2lz(float value);

/* Both halves are exact, so that the sum alone is rounded. */
static double widen(int32_t high, uint32_t low)
{
    return (double)high * 4294967296.0 + (double)low;
}

static double widen_unsigned(uint64_t value)
{
    return (double)(uint32_t)(value >> 32) * 4294967296.0 + (double)(uint32_t)value;
}

/* Towards zero; both halves of a magnitude below 2^63 are exact. */
static int64_t truncate(double value)
{
    double size = value < 0 ? -value : value;
    uint32_t high = (uint32_t)(size * (1 / 4294967296.0));
    uint64_t whole = (uint64_t)high << 32 | (uint32_t)(size - (double)high * 4294967296.0);
    return (int64_t)(value < 0 ? 0 - whole : whole);
}

HELPER BASE double __aeabi_l2d(int64_t value)
{
    return widen((int32_t)(value >> 32), (uint32_t)value);
}

HELPER BASE double __aeabi_ul2d(uint64_t value)
{
    return widen_unsigned(value);
}

HELPER BASE int64_t __aeabi_d2lz(double value)
{
    return truncate(value);
}

HELPER BASE int64_t __aeabi_f2lz(float value)
{
    return truncate(value);
}
#endif

#ifdef EDGEGRAD_BIONIC
float __floatdisf(int64_t value);
float __floatundisf(uint64_t value);
double __floatdidf(int64_t value);
double __floatundidf(uint64_t value);
int64_t __fixsfdi(float value);
int64_t __fixdfdi(double value);
float floorf(float x);
double floor(double x);

HELPER float __floatdisf(int64_t value)
{
    return value < 0 ? -round_magnitude(magnitude(value)) : round_magnitude((uint64_t)value);
}

HELPER float __floatundisf(uint64_t value)
{
    return round_magnitude(value);
}

HELPER double __floatdidf(int64_t value)
{
    return widen((int32_t)(value >> 32), (uint32_t)value);
}

HELPER double __floatundidf(uint64_t value)
{
    return widen_unsigned(value);
}

HELPER int64_t __fixdfdi(double value)
{
    return truncate(value);
}

HELPER int64_t __fixsfdi(float value)
{
    return truncate(value);
}

/* From 2^52 on, and for infinities and NaN, there is nothing to round. */
static double round_down(double x)
{
    double size = x < 0 ? -x : x;
    if (!(size < 4503599627370496.0) || x == 0)
        return x;
    int64_t to = truncate(x);
    double whole = widen((int32_t)(to >> 32), (uint32_t)to);
    whole -= whole > x;
    return whole;
}

HELPER double floor(double x)
{
    return round_down(x);
}

HELPER float floorf(float x)
{
    return (float)round_down(x);
}
#endif
#endif

#if (defined(EDGEGRAD_FREESTANDING) || defined(EDGEGRAD_BIONIC)) \
    && (defined(__arm__) || defined(__riscv))
float roundevenf(float x);
double roundeven(double x);

/* Round to nearest, ties to even: no library of a compiler has these two, nor has Android's C
 * library.  Up to 2^23 a sum with 2^23 has no fraction, and is rounded so. */
HELPER float roundevenf(float x)
{
    float size = x < 0 ? -x : x;
    if (!(size < 8388608.0f) || x == 0)
        return x;
    float whole = size + 8388608.0f - 8388608.0f;
    return x < 0 ? -whole : whole;
}

/* In integers, because many of these CPUs have no doubles.  The last bit of the whole part is the
 * last one of the exponent in [1, 2), which is 1 there; a carry out of the fraction is right. */
HELPER double roundeven(double x)
{
    union {
        double value;
        uint64_t bits;
    } number = {x};
    uint64_t bits = number.bits;
    int32_t exponent = (int32_t)(bits >> 52 & 0x7FF) - 1023;
    uint64_t sign = bits >> 63 << 63, one = (uint64_t)1023 << 52;
    if (exponent >= 52)
        return x; /* without a fraction, infinite, or NaN */
    if (exponent < 0) {
        bits = sign | (bits << 1 > (one - ((uint64_t)1 << 52)) << 1 ? one : 0); /* 1 above 1/2 */
    } else {
        uint64_t half = (uint64_t)1 << (51 - exponent), odd = bits >> (52 - exponent) & 1;
        bits += half - 1 + odd;
        bits &= ~(2 * half - 1);
    }
    number.bits = bits;
    return number.value;
}
#endif

#if defined(EDGEGRAD_FREESTANDING) \
    && ((defined(__arm__) && !(__ARM_FP & 8)) || (defined(__riscv) && __riscv_flen < 64))
double sqrt(double x);

/* The square root, rounded to nearest: a bit of the result at a time. */
HELPER double sqrt(double x)
{
    uint64_t bits, root = 0, twice = 0;
    copy(&bits, &x, sizeof bits);
    int32_t exponent = (int32_t)(bits >> 52 & 0x7FF);
    if (!(bits << 1) || bits << 1 > (uint64_t)0xFFE0000000000000 || bits == (uint64_t)0x7FF << 52)
        return x; /* zero, NaN, infinity */
    if (bits >> 63) {
        bits = (uint64_t)0x7FF8 << 48;
        copy(&x, &bits, sizeof x);
        return x;
    }
    uint64_t rest = bits << 12 >> 12;
    for (exponent += !exponent; !(rest >> 52) && exponent <= 1 && !(bits >> 52); exponent--)
        rest <<= 1;
    if (bits >> 52)
        rest |= (uint64_t)1 << 52;
    exponent -= 1023;
    rest <<= 1 + (exponent & 1);
    for (uint64_t bit = (uint64_t)1 << 53; bit; bit >>= 1, rest <<= 1) {
        if (twice + bit > rest)
            continue;
        rest -= twice + bit;
        twice += 2 * bit;
        root |= bit;
    }
    root += rest ? root & 1 : 0; /* the next bit decides; nothing lies in the middle */
    bits = (root >> 1) + ((uint64_t)(1022 + (exponent - (exponent & 1)) / 2) << 52);
    copy(&x, &bits, sizeof x);
    return x;
}
#endif

#ifdef EDGEGRAD_WINDOWS
/* Functions for libraries of Windows that ziglang links.  The library of its compiler has them too,
 * but is one object of 60 KB with every mathematical function. */

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    void *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(n) : : "memory");
    return to;
}

void *memset(void *to, int byte, size_t n)
{
    void *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(n) : "a"(byte) : "memory");
    return to;
}

size_t strlen(const char *text) /* ziglang's start of a library calls it */
{
    return length(text);
}

void ___chkstk_ms(void);

/* Touch every page of a frame of rax bytes, in order, as Windows adds pages to a stack one by one.
 * No register changes.  Source: Microsoft, x64 ABI conventions, "Stack allocation". */
__attribute__((naked)) void ___chkstk_ms(void)
{
    __asm__("pushq %rcx\n"
            "pushq %rax\n"
            "leaq 24(%rsp), %rcx\n" /* the caller's stack pointer */
            "1: cmpq $4096, %rax\n"
            "jb 2f\n"
            "subq $4096, %rcx\n"
            "orq $0, (%rcx)\n"
            "subq $4096, %rax\n"
            "jmp 1b\n"
            "2: subq %rax, %rcx\n"
            "orq $0, (%rcx)\n"
            "popq %rax\n"
            "popq %rcx\n"
            "ret");
}
#endif
