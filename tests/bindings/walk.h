/* Values and lines of the programs of C, C++ and Objective-C that walk through every function:
 * words of a call become values, and results become a line.
 *
 * Values of a call are in blocks of exactly their size, which are freed after it. */
#ifndef WALK_H
#define WALK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *blocks[64];
static int block_count;
static char said[2048];
static __attribute__((unused)) const char *out_text[8];
static __attribute__((unused)) int out_int[8];
static __attribute__((unused)) int64_t out_long[8];
static __attribute__((unused)) float out_float[8];
static __attribute__((unused)) size_t out_size[8];

static inline void *take_block(size_t bytes)
{
    void *made = malloc(bytes ? bytes : 1);
    if (!made || block_count == 64)
        abort();
    blocks[block_count++] = made;
    return made;
}

static inline void drop_blocks(void)
{
    while (block_count)
        free(blocks[--block_count]);
}

static inline char *read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        abort();
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = (char *)malloc(*bytes + 1);
    if (!text || fread(text, 1, *bytes, file) != *bytes)
        abort();
    text[*bytes] = 0;
    fclose(file);
    return text;
}

/* `x` and the bytes of a text, two digits each; `null` for NULL. */
static inline const char *take_text(const char *word)
{
    if (!strcmp(word, "null"))
        return NULL;
    size_t bytes = strlen(word + 1) / 2;
    char *text = (char *)take_block(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        char digits[3] = {word[1 + 2 * i], word[2 + 2 * i], 0};
        text[i] = (char)strtol(digits, NULL, 16);
    }
    text[bytes] = 0;
    return text;
}

static inline long long take_long(const char *word) { return strtoll(word, NULL, 10); }

static inline int take_int(const char *word) { return (int)take_long(word); }

static inline size_t take_size(const char *word) { return (size_t)strtoull(word, NULL, 10); }

/* The bits of a float. */
static inline float take_float(const char *word)
{
    uint32_t bits = (uint32_t)take_size(word);
    float made;
    memcpy(&made, &bits, 4);
    return made;
}

/* The path of a file with the bytes; `null` for NULL. */
static inline void *take_bytes(const char *word)
{
    if (!strcmp(word, "null"))
        return NULL;
    size_t bytes;
    char *text = read_whole(word, &bytes);
    void *made = take_block(bytes);
    memcpy(made, text, bytes);
    free(text);
    return made;
}

static inline size_t count_bytes(const char *word)
{
    size_t bytes = 0;
    if (strcmp(word, "null"))
        free(read_whole(word, &bytes));
    return bytes;
}

/* A number of elements; with `claim:` before it, what is said of a buffer that has one. */
static inline size_t count_elements(const char *word)
{
    return strcmp(word, "null") ? take_size(strncmp(word, "claim:", 6) ? word : word + 6) : 0;
}

static inline void *take_buffer(const char *word, size_t each)
{
    if (!strcmp(word, "null"))
        return NULL;
    size_t bytes = each * (strncmp(word, "claim:", 6) ? count_elements(word) : 1);
    return memset(take_block(bytes), 0, bytes);
}

/* So many tokens of 0, or after `=` another number; `null` for NULL. */
static inline int32_t *take_tokens(const char *word)
{
    int32_t *made = (int32_t *)take_buffer(word, sizeof *made);
    const char *value = strchr(word, '=');
    for (size_t i = 0; value && i < count_elements(word); i++)
        made[i] = (int32_t)take_long(value + 1);
    return made;
}

/* `f*N=VALUE`, `d*N=VALUE` or `l*N=VALUE`: floats, doubles or int64_t; `null` for NULL. */
static inline void *take_numbers(const char *word, size_t *bytes)
{
    *bytes = 0;
    if (!strcmp(word, "null"))
        return NULL;
    size_t count = take_size(word + 2), each = word[0] == 'f' ? 4 : 8;
    double value = strtod(strchr(word, '=') + 1, NULL);
    char *made = (char *)take_block(*bytes = count * each);
    for (size_t i = 0; i < count; i++) {
        float number = (float)value;
        long long whole = word[0] == 'l' ? (long long)value : 0;
        void *from = word[0] == 'f' ? (void *)&number : word[0] == 'd' ? (void *)&value : &whole;
        memcpy(made + i * each, from, each);
    }
    return made;
}

/* Numbers with commas between them; `null` for NULL. */
static inline const void *const *take_inputs(const char *word)
{
    if (!strcmp(word, "null"))
        return NULL;
    const void **inputs = (const void **)take_block(8 * sizeof *inputs);
    char *text = (char *)take_block(strlen(word) + 1);
    memcpy(text, word, strlen(word) + 1);
    size_t bytes;
    int count = 0;
    for (char *each = strtok(text, ","); each; each = strtok(NULL, ","))
        inputs[count++] = take_numbers(each, &bytes);
    return (const void *const *)inputs;
}

static inline void tell_done(void) { strcpy(said, "ok"); }

static inline void tell_number(long long number)
{
    snprintf(said, sizeof said, "ok %lld", number);
}

static inline void tell_address(const void *address)
{
    strcpy(said, address ? "ok some" : "ok none");
}

static inline void tell_error(int code, const char *message)
{
    snprintf(said, sizeof said, "%d %s", code, message);
}

static inline void tell_code(int code, const char *message)
{
    if (code)
        tell_error(code, message);
    else
        tell_done();
}

/* A row of a file of calls: the state of the model, a function, and its words. */
struct row {
    const char *state, *name;
    char *words[8];
};

static inline int read_rows(const char *path, struct row *rows)
{
    static char *text;
    size_t bytes;
    free(text);
    text = read_whole(path, &bytes);
    int count = 0;
    char *rest = text;
    while (*rest) {
        char *line = rest, *end = strchr(rest, '\n');
        *end = 0;
        rest = end + 1;
        struct row *row = &rows[count++];
        memset(row, 0, sizeof *row);
        row->state = strtok(line, " ");
        row->name = strtok(NULL, " ");
        for (int i = 0; i < 8 && (row->words[i] = strtok(NULL, " ")); i++)
            continue;
    }
    return count;
}

static inline long read_resident(void)
{
    long all, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &all, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * 4096;
}

enum { MOST_ROWS = 20000 };
static struct row rows[MOST_ROWS];

#endif
