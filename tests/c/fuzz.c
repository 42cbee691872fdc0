/* Changes files again and again and gives them to a reader, guided by what the reader runs through.
 * An input that takes the reader a new way is kept, and is changed in its turn.
 *
 * usage: fuzz SEED ROUNDS FAILED FOLDER FILE...
 *   SEED     of the changes: the same seed, files and build give the same inputs
 *   ROUNDS   how many inputs; 0: only the files themselves
 *   FAILED   the file for an input at which the reader fails, or takes longer than LONGEST seconds
 *   FOLDER   for inputs that were kept; "-": none
 *   FILE...  what to begin with
 *
 * Linked with one of fuzz_checkpoint.c, fuzz_plan.c and fuzz_message.c, which are the readers.
 * These and the library are compiled with -fsanitize-coverage=trace-pc, this file is not. */

#include "fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LARGEST = 1 << 16,     /* bytes of an input */
    MOST = 1 << 12,        /* inputs that are kept */
    WAYS = 1 << 16,        /* places of the table of ways through the code */
    LONGEST = 20           /* seconds for one input, in any build and on any machine */
};

struct input {
    unsigned char *bytes;
    size_t size;
};

static struct input kept[MOST];
static unsigned kept_count;
static unsigned char now[LARGEST];
static size_t now_size;
static const char *failed_path;
static uint64_t state;

/* --- ways through the code: an edge is a place and the one before it, counted up to 255 */

static unsigned char passed[WAYS], known[WAYS];
static uintptr_t before;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&fuzz_take;
    unsigned char *way = &passed[(here ^ here >> 16 ^ before) % WAYS];
    *way = (unsigned char)(*way + (*way < 255));
    before = here << 1 ^ here >> 7;
}

/* Return 1 if an edge was taken that no input has taken, or more often, by powers of two. */
static int is_new(void)
{
    int found = 0;
    for (unsigned i = 0; i < WAYS; i++)
        if (passed[i]) {
            unsigned char much = 1;
            for (unsigned n = passed[i]; n >>= 1;)
                much = (unsigned char)(much << 1 | 1);
            found |= (known[i] & much) != much;
            known[i] |= much;
        }
    return found;
}

static unsigned ways(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < WAYS; i++)
        count += known[i] != 0;
    return count;
}

/* --- failures */

static void write_to(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t done = 0; file >= 0 && done < now_size;) {
        ssize_t n = write(file, now + done, now_size - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    if (file >= 0)
        close(file);
}

static void tell_failed(void)
{
    static const char text[] = "\nthe reader failed; the input is ";
    write_to(failed_path);
    if (write(2, text, sizeof text - 1) < 0 || write(2, failed_path, strlen(failed_path)) < 0
        || write(2, "\n", 1) < 0)
        _exit(4);
}

static void stopped(int number)
{
    tell_failed();
    if (number == SIGALRM)
        _exit(3);
    signal(number, SIG_DFL);
    raise(number);
}

#ifdef SANITIZED
void __sanitizer_set_death_callback(void (*)(void)); /* of AddressSanitizer; the other aborts */
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1";
}
#endif

/* --- changes */

static unsigned next(size_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % (below ? below : 1));
}

static const uint64_t odd[] = {
    0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF,
    0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000,
    0xFFFFFFFFFFFFFFF8, 0xFFFFFFFFFFFFFFFF,
};

/* A place to change: the structure of a file is mostly at its start or its end. */
static size_t place(size_t size)
{
    size_t near = size < 512 ? size : 512;
    switch (next(4)) {
    case 0:
        return next(near);
    case 1:
        return size - 1 - next(near);
    default:
        return next(size);
    }
}

static void put_number(size_t at, unsigned width)
{
    uint64_t value = 0;
    if (at + width > now_size)
        return;
    for (unsigned i = width; i--;)
        value = value << 8 | now[at + i];
    switch (next(5)) {
    case 0:
        value = odd[next(sizeof odd / sizeof *odd)];
        break;
    case 1:
        value += next(33) - (uint64_t)16;
        break;
    case 2: /* what a length or an offset is compared with */
        value = now_size - (next(2) ? at : 0) + next(9) - (uint64_t)4;
        break;
    case 3:
        value = next(2) ? value << 1 : value << next(64);
        break;
    default:
        value = ~value + next(2);
    }
    for (unsigned i = 0; i < width; i++)
        now[at + i] = (unsigned char)(value >> 8 * i);
}

/* Put `size` bytes at a place, in the place of others or between them. */
static void put_bytes(size_t at, const unsigned char *bytes, size_t size, int between)
{
    size_t behind = between ? at : at + size < now_size ? at + size : now_size;
    if (at > now_size || at + size + (now_size - behind) > LARGEST)
        return;
    memmove(now + at + size, now + behind, now_size - behind);
    memcpy(now + at, bytes, size);
    now_size = at + size + (now_size - behind);
}

static void change(void)
{
    static unsigned char block[LARGEST];
    if (!now_size) {
        now[0] = (unsigned char)next(256);
        now_size = 1;
    }
    size_t at = place(now_size), size = 1 + next(next(4) ? 16 : 1024);
    switch (next(12)) {
    case 0:
    case 1:
        now[at] ^= (unsigned char)(1 << next(8));
        break;
    case 2:
        now[at] = (unsigned char)next(256);
        break;
    case 3:
    case 4:
    case 5:
        put_number(next(2) ? at : at & ~(size_t)3, 1u << next(4));
        break;
    case 6: /* cut short */
        if (!next(4))
            now_size = next(2) ? at : now_size - 1 - next(now_size < 64 ? now_size : 64);
        break;
    case 7: /* leave a piece out */
        if (at + size < now_size) {
            memmove(now + at, now + at + size, now_size - at - size);
            now_size -= size;
        }
        break;
    case 8: { /* a piece from elsewhere */
        size_t from = next(now_size);
        size = from + size < now_size ? size : now_size - from;
        memcpy(block, now + from, size);
        put_bytes(at, block, size, (int)next(2));
        break;
    }
    case 9: { /* a piece of another input, or all that follows */
        const struct input *other = &kept[next(kept_count)];
        size_t from = next(other->size);
        size = !next(4) || from + size > other->size ? other->size - from : size;
        put_bytes(next(2) ? from : at, other->bytes + from, size, !next(3));
        break;
    }
    case 10:
        memset(block, next(2) ? 0 : 255, size);
        put_bytes(at, block, size, !next(3));
        break;
    default:
        if (fuzz_words[0]) {
            size_t count = 0;
            while (fuzz_words[count])
                count++;
            const char *word = fuzz_words[next(count)];
            put_bytes(at, (const unsigned char *)word, strlen(word), (int)next(2));
        }
    }
}

/* --- the loop */

static unsigned long taken, refused;

/* Give the input to the reader in a block of its very size, which sanitizers guard. */
static int attempt(void)
{
    unsigned char *exact = malloc(now_size ? now_size : 1);
    if (!exact)
        exit(2);
    memcpy(exact, now, now_size);
    memset(passed, 0, sizeof passed);
    before = 0;
    int code = fuzz_take(exact, now_size);
    free(exact);
    *(code ? &refused : &taken) += 1;
    return code;
}

static void keep(const char *folder)
{
    char path[4096];
    if (kept_count == MOST)
        return;
    struct input *new = &kept[kept_count++];
    new->size = now_size;
    new->bytes = malloc(now_size ? now_size : 1);
    if (!new->bytes)
        exit(2);
    memcpy(new->bytes, now, now_size);
    if (strcmp(folder, "-")) {
        snprintf(path, sizeof path, "%s/%04u", folder, kept_count - 1);
        write_to(path);
    }
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    unsigned long rounds = strtoul(argv[2], NULL, 10);
    failed_path = argv[3];
    signal(SIGABRT, stopped);
    signal(SIGALRM, stopped);
#ifdef SANITIZED
    __sanitizer_set_death_callback(tell_failed);
#endif
    for (int i = 5; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file)
            return 2;
        now_size = fread(now, 1, sizeof now, file);
        fclose(file);
        alarm(LONGEST);
        int code = attempt();
        if (!rounds)
            putchar('0' + code);
        if (is_new() || i == 5)
            keep(argv[4]);
    }
    for (unsigned long round = 0; round < rounds; round++) {
        /* the youngest are changed most often */
        unsigned youngest = kept_count < 64 ? kept_count : 64;
        unsigned pick = next(3) ? next(kept_count) : kept_count - 1 - next(youngest);
        now_size = kept[pick].size;
        memcpy(now, kept[pick].bytes, now_size);
        for (unsigned n = 1u << next(4); n > 0; n--)
            change();
        if (next(16))
            fuzz_mend(now, now_size);
        if (round % 16 == 0)
            alarm(LONGEST);
        attempt();
        if (is_new())
            keep(argv[4]);
    }
    alarm(0);
    printf("%staken %lu refused %lu kept %u ways %u\n", rounds ? "" : "\n", taken, refused,
           kept_count, ways());
    for (unsigned i = 0; i < kept_count; i++)
        free(kept[i].bytes);
    return 0;
}
