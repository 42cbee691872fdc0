/* Runs the steps of a plan with the kernels of a shipped library, on one thread, and writes all
 * regions back.  usage: shipped LIBRARY JOB RESULT
 * JOB, in numbers of 64 bits: how many regions, the bytes of each, then their contents; how many
 * steps, and for each the number of its kernel, how many words it takes, and for each of these a
 * region, or -1, and an offset in it, or the word itself. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef _WIN32
#include <windows.h>
#define OPEN(path) LoadLibraryA(path)
#define FIND(library, name) ((void *)GetProcAddress(library, name))
#else
#include <dlfcn.h>
#define OPEN(path) dlopen(path, RTLD_NOW)
#define FIND(library, name) dlsym(library, name)
#endif

typedef void kernel(const int64_t *arguments, int64_t tid, int64_t threads);

struct entry {
    int64_t count, share;
    kernel *const *const *tables;
};

static int64_t number(FILE *file)
{
    int64_t value;
    if (fread(&value, sizeof value, 1, file) != 1)
        exit(2);
    return value;
}

int main(int argc, char **argv)
{
    void *library = argc == 4 ? (void *)OPEN(argv[1]) : 0;
    FILE *job = library ? fopen(argv[2], "rb") : 0;
    if (!job)
        return 3;
    const struct entry *(*find)(void) =
        (const struct entry *(*)(void))FIND(library, "edgegrad_shipped");
    if (!find)
        return 4;
    const struct entry *shipped = find();
    int64_t regions = number(job), sizes[16];
    char *bytes[16];
    if (regions > 16)
        return 5;
    for (int64_t i = 0; i < regions; i++)
        sizes[i] = number(job);
    for (int64_t i = 0; i < regions; i++) {
        char *raw = malloc((size_t)sizes[i] + 64); /* kernels want whole cache lines */
        bytes[i] = raw ? raw + (64 - (uintptr_t)raw % 64) % 64 : 0;
        if (!raw || fread(bytes[i], 1, (size_t)sizes[i], job) != (size_t)sizes[i])
            return 6;
    }
    for (int64_t left = number(job); left > 0; left--) {
        int64_t chosen = number(job), words = number(job), arguments[256];
        if (chosen >= shipped->count || words > 256)
            return 7;
        for (int64_t i = 0; i < words; i++) {
            int64_t region = number(job), value = number(job);
            arguments[i] = region < 0 ? value : (int64_t)(intptr_t)(bytes[region] + value);
        }
        shipped->tables[chosen / shipped->share][chosen % shipped->share](arguments, 0, 1);
    }
    FILE *result = fopen(argv[3], "wb");
    if (!result)
        return 8;
    for (int64_t i = 0; i < regions; i++)
        if (fwrite(bytes[i], 1, (size_t)sizes[i], result) != (size_t)sizes[i])
            return 9;
    return fclose(result) ? 10 : 0;
}
