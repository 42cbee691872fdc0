/* The check that this CPU has the instructions that the kernels use, so that a library on another
 * CPU reports what is missing instead of crashing the program at its first step.  This source is
 * compiled for the oldest CPU of the architecture, so it runs on all of them.
 *
 * NEEDS are rows of `struct need`, made by tools/trimmed/cpu.py; without rows there is no check.
 * On ARM, only Linux reports the instructions, so other systems and archives without a C library do
 * not check. */

#if defined(NEEDS) \
    && (defined(__x86_64__) || (defined(__linux__) && !defined(EDGEGRAD_FREESTANDING)))
#define CHECKS_CPU 1
#ifdef __x86_64__
#include <cpuid.h>
#else
#include <sys/auxv.h>
#endif

struct need {
    uint8_t word;
    uint32_t mask; /* bits of the word that must all be set */
    const char *name;
};

enum { CPU_WORDS = 7 };

#ifdef __x86_64__
/* Words: ECX of leaf 1; EBX, ECX, EDX of leaf 7; EAX of its subleaf 1; ECX of leaf 0x80000001; and
 * which registers the system saves. */
static void read_cpu(uint32_t *answers)
{
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d))
        answers[0] = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        answers[1] = b;
        answers[2] = c;
        answers[3] = d;
        if (a && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            answers[4] = a;
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d))
        answers[5] = c;
    if (answers[0] & 1u << 27) /* the system allows xgetbv */
        __asm__("xgetbv" : "=a"(answers[6]), "=d"(d) : "c"(0));
}
#else
/* Words: the two vectors in which the Linux kernel describes the CPU. */
static void read_cpu(uint32_t *answers)
{
    answers[0] = (uint32_t)getauxval(AT_HWCAP);
    answers[1] = (uint32_t)getauxval(AT_HWCAP2);
}
#endif

/* Return an error code, and write to `message` what this CPU lacks. */
static int check_cpu(char *message)
{
    static const struct need needs[] = {NEEDS};
    uint32_t answers[CPU_WORDS];
    char why[MODEL_MESSAGE_BYTES];
    struct text t = {message ? message : why, MODEL_MESSAGE_BYTES, 0};
    int missing = 0;
    zero(answers, sizeof answers);
    read_cpu(answers);
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if ((answers[needs[i].word] & needs[i].mask) == needs[i].mask)
            continue;
        put_string(&t, missing++ ? ", " : "this CPU lacks ", 15);
        put_string(&t, needs[i].name, 20);
    }
    if (!missing)
        return MODEL_OK;
    put_string(&t, ": the library was built for " CPU_NAME, 80);
    t.out[t.used] = 0;
    return MODEL_BAD_CPU;
}
#else
static int check_cpu(char *message)
{
    (void)message;
    return MODEL_OK;
}
#endif
