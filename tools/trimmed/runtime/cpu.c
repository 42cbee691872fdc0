/* The choice of the best code that this CPU has the instructions for.  A library on a CPU that has
 * them for none reports what is missing instead of crashing the program at its first step.  This
 * source is compiled for the oldest CPU of the architecture, so it runs on all of them.
 *
 * NEEDS is the number of features that tools/trimmed/cpu.py lists for all levels; without any there
 * is no check.  On ARM, Linux and Apple's systems report the instructions through the C library, so
 * other systems and archives without one do not check, and have one level.  QUESTIONS are these
 * features with the names that Apple's systems have for them.
 *
 * TILE_REGISTERS is 1 if code uses tile registers of x86, which it does on Linux alone. */

#if NEEDS \
    && (defined(__x86_64__) \
        || ((defined(__linux__) || defined(__APPLE__)) && !defined(EDGEGRAD_FREESTANDING)))
#define CHECKS_CPU 1
#ifdef __x86_64__
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif

enum { CPU_WORDS = 8 };

#ifdef __x86_64__
#if TILE_REGISTERS
/* Ask the system for tile registers, without which their first use ends the process; return 1 if it
 * gives them.  It gives them to all threads at once, and frames of signals grow by 8 KB. */
static uint32_t ask_for_tiles(void)
{
    enum { ARCH_PRCTL = 158, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    long result = ARCH_PRCTL;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"((long)ARCH_REQ_XCOMP_PERM), "S"((long)XTILEDATA)
                     : "rcx", "r11", "memory");
    return result == 0;
}
#endif

/* Words: ECX of leaf 1; EBX, ECX, EDX of leaf 7; EAX of its subleaf 1; ECX of leaf 0x80000001;
 * which registers the system saves; and whether it gives this process tile registers. */
static void ask_features(uint32_t *answers)
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
#if TILE_REGISTERS
    if (answers[3] & 1u << 24 && (answers[6] & 0x60000) == 0x60000)
        answers[7] = ask_for_tiles();
#endif
}
#elif defined(__APPLE__)
/* Words: as of Linux, in bits that the system is asked for one by one.  Versions from before a CPU
 * had a feature have no name for it, and so say that it is missing. */
static void ask_features(uint32_t *answers)
{
    static const struct need questions[] = {QUESTIONS};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        int has = 0;
        size_t bytes = sizeof has;
        if (sysctlbyname(questions[i].name, &has, &bytes, NULL, 0) == 0 && has)
            answers[questions[i].word] |= questions[i].mask;
    }
}
#else
/* Words: the two vectors in which the Linux kernel describes the CPU. */
static void ask_features(uint32_t *answers)
{
    answers[0] = (uint32_t)getauxval(AT_HWCAP);
    answers[1] = (uint32_t)getauxval(AT_HWCAP2);
}
#endif

/* Return 1 if this CPU, which gave the answers, lacks what a row asks for. */
static int lacks(const uint32_t *answers, const struct need *need)
{
    return (answers[need->word] & need->mask) != need->mask;
}

/* Return the number of features of a level that this CPU lacks. */
static size_t count_missing(const uint32_t *answers, const struct level *level)
{
    size_t missing = 0;
    for (size_t i = 0; i < level->need_count; i++)
        missing += lacks(answers, &level->needs[i]) != 0;
    return missing;
}

/* Write the number of the best level for this CPU to *chosen.  Return an error code, and write to
 * `message` what this CPU lacks for the last one. */
static int choose_level(int *chosen, char *message)
{
    uint32_t answers[CPU_WORDS];
    char why[MODEL_MESSAGE_BYTES];
    struct text t = {message ? message : why, MODEL_MESSAGE_BYTES, 0};
    int number = 0;
    const char *before = "this CPU lacks ";
    zero(answers, sizeof answers);
    ask_features(answers);
    while (number < LEVELS - 1 && count_missing(answers, level_at(number)))
        number++;
    const struct level *level = level_at(*chosen = number);
    if (!count_missing(answers, level))
        return MODEL_OK;
    for (size_t i = 0; i < level->need_count; i++) {
        if (!lacks(answers, &level->needs[i]))
            continue;
        put_string(&t, before, 15);
        put_string(&t, level->needs[i].name, 20);
        before = ", ";
    }
    put_string(&t, ": the library was built for ", 28);
    put_string(&t, level->cpu, 52);
    t.out[t.used] = 0;
    return MODEL_BAD_CPU;
}
#else
_Static_assert(LEVELS == 1, "nothing tells which level this CPU can run");

static int choose_level(int *chosen, char *message)
{
    (void)message;
    *chosen = 0;
    return MODEL_OK;
}
#endif
