/* Messages of a federation: files of safetensors, read and written in C99 with the C library.
 *
 * A device gets a request, puts its parameters into the model, trains, and answers:
 *
 *     edgegrad_message m;
 *     char why[EDGEGRAD_WHY];
 *     if (edgegrad_open(&m, bytes, size, why)) { puts(why); return 1; }
 *     edgegrad_tensor t;
 *     if (edgegrad_find(&m, "fc.weight", &t) && t.bytes == sizeof weight)
 *         memcpy(weight, t.data, sizeof weight);
 *     ...
 *     edgegrad_writer w;
 *     edgegrad_begin(&w, header, sizeof header);
 *     edgegrad_put_text(&w, "kind", "trained");
 *     edgegrad_put_number(&w, "metric.num-examples", 60);
 *     edgegrad_add(&w, "fc.weight", "F32", 2, dims, sizeof weight);
 *     size_t length = edgegrad_end(&w);     0: the header was too small
 *     fwrite(header, 1, length, file);
 *     fwrite(weight, 1, sizeof weight, file);
 *
 * Nothing is allocated.  Messages may be hostile: edgegrad_open checks that the tensors fill the
 * data without overlap or gap, and that no name occurs twice.  Numbers are little-endian, so the
 * machine must be, too.
 */
#ifndef EDGEGRAD_MESSAGE_H
#define EDGEGRAD_MESSAGE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef EDGEGRAD_MAX_HEADER
#define EDGEGRAD_MAX_HEADER 65536u /* bytes; the time of checking grows with its square */
#endif
enum { EDGEGRAD_WHY = 160, EDGEGRAD_MAX_RANK = 32, EDGEGRAD_START = 8 };

typedef struct edgegrad_message {
    const char *header, *end; /* from `{` to after `}` */
    const unsigned char *data;
    size_t bytes; /* of data */
} edgegrad_message;

typedef struct edgegrad_tensor {
    char dtype[8]; /* "F32", "I64", ... */
    int rank;
    uint64_t dims[EDGEGRAD_MAX_RANK];
    const void *data; /* at any address: memcpy it */
    size_t bytes;
} edgegrad_tensor;

/* --- reading: a cursor over the header, which becomes NULL at the first error */

static inline const char *edgegrad_space(const char *at, const char *end)
{
    while (at && at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* Skip spaces and the character that must follow them; return the place after it. */
static inline const char *edgegrad_skip(const char *at, const char *end, char wanted)
{
    at = edgegrad_space(at, end);
    return at && at < end && *at == wanted ? at + 1 : NULL;
}

static inline int edgegrad_next_is(const char *at, const char *end, char wanted)
{
    return edgegrad_skip(at, end, wanted) != NULL;
}

static inline const char *edgegrad_hex(const char *at, const char *end, uint32_t *found)
{
    *found = 0;
    if (!at || end - at < 4)
        return NULL;
    for (int i = 0; i < 4; i++, at++) {
        char c = *at;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
                       : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                       : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10 : 16;
        if (digit > 15)
            return NULL;
        *found = *found << 4 | digit;
    }
    return at;
}

/* Skip a quoted text; copy its first `size` bytes to `out` and its length to `length`. */
static inline const char *edgegrad_string(const char *at, const char *end, char *out, size_t size,
                                          size_t *length)
{
    size_t n = 0;
    at = edgegrad_skip(at, end, '"');
    while (at && at < end && *at != '"') {
        uint32_t c = (unsigned char)*at++, low;
        int is_escaped = 0;
        if (c < 0x20)
            return NULL;
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            const char *found = at < end && *at ? strchr(from, *at) : NULL;
            if (at < end && *at == 'u') {
                at = edgegrad_hex(at + 1, end, &c);
                if (at && c >= 0xD800 && c < 0xDC00) { /* the first of a pair */
                    at = end - at > 6 && at[0] == '\\' && at[1] == 'u'
                       ? edgegrad_hex(at + 2, end, &low) : NULL;
                    if (!at || low < 0xDC00 || low > 0xDFFF)
                        return NULL;
                    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
                } else if (c >= 0xDC00 && c < 0xE000) {
                    return NULL;
                }
                is_escaped = 1;
            } else if (found) {
                c = (unsigned char)to[found - from];
                at++;
            } else {
                return NULL;
            }
        }
        if (!at || c == 0)
            return NULL;
        unsigned char utf8[4];
        size_t count = 1;
        utf8[0] = (unsigned char)c;
        if (is_escaped && c >= 0x80) {
            count = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
            for (size_t i = count; i-- > 1; c >>= 6)
                utf8[i] = (unsigned char)(0x80 | (c & 0x3F));
            utf8[0] = (unsigned char)((count == 2 ? 0xC0 : count == 3 ? 0xE0 : 0xF0) | c);
        }
        for (size_t i = 0; i < count; i++, n++)
            if (n < size)
                out[n] = (char)utf8[i];
    }
    *length = n;
    return at && at < end ? at + 1 : NULL;
}

static inline const char *edgegrad_count(const char *at, const char *end, uint64_t *found)
{
    at = edgegrad_space(at, end);
    const char *first = at;
    *found = 0;
    for (; at && at < end && *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');
        if (*found > (UINT64_MAX / 2 - digit) / 10 || (at > first && *first == '0'))
            return NULL;
        *found = *found * 10 + digit;
    }
    return at == first ? NULL : at;
}

/* Read a list of at most `most` whole numbers, and skip it. */
static inline const char *edgegrad_counts(const char *at, const char *end, uint64_t *found,
                                          int most, int *count)
{
    *count = 0;
    at = edgegrad_skip(at, end, '[');
    if (edgegrad_next_is(at, end, ']'))
        return edgegrad_skip(at, end, ']');
    while (at) {
        if (*count == most)
            return NULL;
        at = edgegrad_count(at, end, &found[(*count)++]);
        if (!edgegrad_next_is(at, end, ','))
            return edgegrad_skip(at, end, ']');
        at = edgegrad_skip(at, end, ',');
    }
    return NULL;
}

static inline size_t edgegrad_item(const char *dtype)
{
    static const char names[] = "BOOL U8 I8 U16 I16 F16 BF16 U32 I32 F32 U64 I64 F64";
    static const unsigned char sizes[] = {1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8};
    size_t n = strlen(dtype), k = 0;
    for (const char *at = names; *at; k++) {
        size_t length = strcspn(at, " ");
        if (length == n && !memcmp(at, dtype, n))
            return sizes[k];
        at += length + (at[length] == ' ');
    }
    return 0;
}

/* Skip the entry of a tensor, {"dtype": ..., "shape": [...], "data_offsets": [...]}. */
static inline const char *edgegrad_entry(const edgegrad_message *m, const char *at,
                                         edgegrad_tensor *t)
{
    uint64_t offsets[2] = {0, 0}, bytes;
    int seen = 0, count;
    size_t length;
    char key[16];
    at = edgegrad_skip(at, m->end, '{');
    while (at) {
        int which;
        at = edgegrad_string(at, m->end, key, sizeof key, &length);
        at = edgegrad_skip(at, m->end, ':');
        if (at && length == 5 && !memcmp(key, "dtype", 5)) {
            which = 1;
            at = edgegrad_string(at, m->end, t->dtype, sizeof t->dtype - 1, &length);
            if (!at || length > sizeof t->dtype - 1)
                return NULL;
            t->dtype[length] = 0;
        } else if (at && length == 5 && !memcmp(key, "shape", 5)) {
            which = 2;
            at = edgegrad_counts(at, m->end, t->dims, EDGEGRAD_MAX_RANK, &t->rank);
        } else if (at && length == 12 && !memcmp(key, "data_offsets", 12)) {
            which = 4;
            at = edgegrad_counts(at, m->end, offsets, 2, &count);
            if (count != 2)
                return NULL;
        } else {
            return NULL;
        }
        if (!at || seen & which)
            return NULL;
        seen |= which;
        if (!edgegrad_next_is(at, m->end, ','))
            break;
        at = edgegrad_skip(at, m->end, ',');
    }
    at = edgegrad_skip(at, m->end, '}');
    if (!at || seen != 7 || offsets[1] < offsets[0] || offsets[1] > m->bytes)
        return NULL;
    bytes = edgegrad_item(t->dtype);
    int is_empty = 0;
    for (int i = 0; i < t->rank; i++) {
        uint64_t d = t->dims[i] ? t->dims[i] : 1;
        is_empty |= !t->dims[i];
        if (bytes > UINT64_MAX / d)
            return NULL;
        bytes *= d;
    }
    if (!bytes || (is_empty ? 0 : bytes) != offsets[1] - offsets[0])
        return NULL;
    t->data = m->data + offsets[0];
    t->bytes = is_empty ? 0 : (size_t)bytes;
    return at;
}

/* Skip the metadata; copy the text with this name to `out`, its length to `found` (-1: missing). */
static inline const char *edgegrad_texts(const edgegrad_message *m, const char *at,
                                         const char *name, char *out, size_t size, int *found)
{
    char key[64];
    size_t length, kept;
    *found = -1;
    at = edgegrad_skip(at, m->end, '{');
    if (edgegrad_next_is(at, m->end, '}'))
        return edgegrad_skip(at, m->end, '}');
    while (at) {
        at = edgegrad_string(at, m->end, key, sizeof key, &length);
        at = edgegrad_skip(at, m->end, ':');
        int is_it = at && name && length == strlen(name) && length <= sizeof key
                 && !memcmp(key, name, length);
        at = edgegrad_string(at, m->end, is_it ? out : NULL, is_it ? size : 0, &kept);
        if (at && is_it) {
            if (*found >= 0 || kept > 0x7FFFFFFF)
                return NULL;
            *found = (int)kept;
        }
        if (!edgegrad_next_is(at, m->end, ','))
            return edgegrad_skip(at, m->end, '}');
        at = edgegrad_skip(at, m->end, ',');
    }
    return NULL;
}

/* The entry that edgegrad_walk searches for, and the results. */
typedef struct edgegrad_search {
    const char *name; /* name of a tensor, or NULL */
    const char *text; /* name of a text, or NULL */
    char *out;
    size_t size;
    int length;          /* of the text; -1: none */
    edgegrad_tensor *into; /* the tensor with the name */
    int tensors;         /* how many have the name */
    int number;          /* of the tensor to compare with all later ones; -1: none */
    uint64_t total;      /* bytes of all tensors */
    int count;           /* of all tensors */
} edgegrad_search;

/* Go over the whole header; return 0 if it is malformed. */
static inline int edgegrad_walk(const edgegrad_message *m, edgegrad_search *s)
{
    char key[256], mine[256];
    size_t length, my_length = 0;
    edgegrad_tensor t, other;
    int has_texts = 0, unused;
    const char *at = edgegrad_skip(m->header, m->end, '{');
    s->length = -1;
    s->tensors = s->count = 0;
    s->total = 0;
    other.bytes = 0;
    other.data = NULL;
    if (edgegrad_next_is(at, m->end, '}'))
        return edgegrad_space(edgegrad_skip(at, m->end, '}'), m->end) == m->end;
    while (at) {
        at = edgegrad_string(at, m->end, key, sizeof key, &length);
        at = edgegrad_skip(at, m->end, ':');
        if (!at || length > sizeof key)
            return 0;
        if (length == 12 && !memcmp(key, "__metadata__", 12)) {
            if (has_texts++)
                return 0;
            at = edgegrad_texts(m, at, s->text, s->out, s->size, s->text ? &s->length : &unused);
        } else {
            at = edgegrad_entry(m, at, &t);
            if (!at)
                return 0;
            if (s->name && length == strlen(s->name) && !memcmp(key, s->name, length)) {
                *s->into = t;
                s->tensors++;
            }
            if (s->count == s->number) {
                memcpy(mine, key, length);
                my_length = length;
                other = t;
            } else if (s->number >= 0 && s->count > s->number) {
                const unsigned char *a = t.data, *b = other.data;
                if ((length == my_length && !memcmp(key, mine, length))
                    || (t.bytes && other.bytes && a < b + other.bytes && b < a + t.bytes))
                    return 0;
            }
            s->total += t.bytes;
            s->count++;
        }
        if (!edgegrad_next_is(at, m->end, ','))
            break;
        at = edgegrad_skip(at, m->end, ',');
    }
    at = edgegrad_space(edgegrad_skip(at, m->end, '}'), m->end);
    return at == m->end;
}

/* Copy the text with this name in the metadata, null-terminated; return 1 if it exists and fits. */
static inline int edgegrad_text(const edgegrad_message *m, const char *name, char *out, size_t size)
{
    edgegrad_search s = {0};
    s.text = name, s.out = out, s.size = size - 1, s.number = -1;
    if (!size || !edgegrad_walk(m, &s) || s.length < 0 || (size_t)s.length >= size)
        return 0;
    out[s.length] = 0;
    return 1;
}

/* Read a number of the metadata, as "config.learning-rate"; return 1 if it is there and finite. */
static inline int edgegrad_number(const edgegrad_message *m, const char *name, double *out)
{
    char text[64], *rest;
    if (!edgegrad_text(m, name, text, sizeof text) || !text[0]
        || text[strspn(text, "+-0123456789.eE")])
        return 0;
    *out = strtod(text, &rest);
    return !*rest && *out - *out == 0;
}

/* Find the tensor with this name; return 1 if it exists. */
static inline int edgegrad_find(const edgegrad_message *m, const char *name, edgegrad_tensor *out)
{
    edgegrad_search s = {0};
    s.name = name, s.into = out, s.number = -1;
    return edgegrad_walk(m, &s) && s.tensors == 1;
}

/* Return the number of tensors. */
static inline int edgegrad_tensors(const edgegrad_message *m)
{
    edgegrad_search s = {0};
    s.number = -1;
    return edgegrad_walk(m, &s) ? s.count : 0;
}

static inline int edgegrad_refuse(char *why, const char *text)
{
    snprintf(why, EDGEGRAD_WHY, "%s", text);
    return 1;
}

/* Read a message in place, without a copy; return 0, or 1 with the reason in `why`. */
static inline int edgegrad_open(edgegrad_message *m, const void *bytes, size_t size, char *why)
{
    const unsigned char *at = bytes;
    uint64_t length = 0;
    char version[4];
    edgegrad_search s = {0};
    if (size < EDGEGRAD_START)
        return edgegrad_refuse(why, "a message has at least 8 bytes");
    for (int i = EDGEGRAD_START; i-- > 0;)
        length = length << 8 | at[i];
    if (length > size - EDGEGRAD_START)
        return edgegrad_refuse(why, "the header is longer than the message: no message, or a part");
    if (length > EDGEGRAD_MAX_HEADER)
        return edgegrad_refuse(why, "the header is longer than EDGEGRAD_MAX_HEADER");
    m->header = (const char *)at + EDGEGRAD_START;
    m->end = m->header + length;
    m->data = at + EDGEGRAD_START + length;
    m->bytes = size - EDGEGRAD_START - (size_t)length;
    s.number = -1;
    if (!edgegrad_walk(m, &s))
        return edgegrad_refuse(why, "the header is malformed, or tensors lie outside of the data");
    if (s.total != m->bytes)
        return edgegrad_refuse(why, "the tensors are not as long as the data: overlap, gap, tail");
    for (int k = 0, count = s.count; k < count; k++) {
        s.number = k;
        if (!edgegrad_walk(m, &s))
            return edgegrad_refuse(why, "two tensors have one name, or overlap");
    }
    if (!edgegrad_text(m, "edgegrad.message", version, sizeof version))
        return edgegrad_refuse(why, "no message of a federation: 'edgegrad.message' is missing");
    if (strcmp(version, "1"))
        return edgegrad_refuse(why, "a message of another version than 1");
    return 0;
}

/* --- the fingerprint: FNV-1a over one line for each parameter, in the order of the names */

static inline uint64_t edgegrad_hash(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#define EDGEGRAD_HASH UINT64_C(0xcbf29ce484222325) /* the hash before the first parameter */

static inline uint64_t edgegrad_hash_parameter(uint64_t hash, const char *name, const char *dtype,
                                               int rank, const int64_t *dims)
{
    char number[24];
    hash = edgegrad_hash(hash, name, strlen(name) + 1);
    hash = edgegrad_hash(hash, dtype, strlen(dtype));
    for (int i = 0; i < rank; i++) {
        int n = snprintf(number, sizeof number, ",%lld", (long long)dims[i]);
        hash = edgegrad_hash(hash, number, (size_t)n);
    }
    return edgegrad_hash(hash, "\n", 1);
}

/* --- writing: the header; the values follow it in the order in which they were added */

typedef struct edgegrad_writer {
    char *out;
    size_t size, used; /* used > size: there was no room */
    uint64_t end;      /* of the last tensor */
    int has_texts;
} edgegrad_writer;

static inline void edgegrad_put(edgegrad_writer *w, const char *text, size_t n)
{
    if (w->used <= w->size && n <= w->size - w->used)
        memcpy(w->out + w->used, text, n);
    else
        w->used = w->size + 1;
    if (w->used <= w->size)
        w->used += n;
}

static inline void edgegrad_put_string(edgegrad_writer *w, const char *text)
{
    char escape[8];
    edgegrad_put(w, "\"", 1);
    for (; *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20) {
            int n = snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*text);
            edgegrad_put(w, escape, (size_t)n);
        } else {
            edgegrad_put(w, text, 1);
        }
    edgegrad_put(w, "\"", 1);
}

/* Begin a message; add all texts before the first tensor. */
static inline void edgegrad_begin(edgegrad_writer *w, void *header, size_t size)
{
    w->out = header;
    w->size = size;
    w->used = size < EDGEGRAD_START ? size + 1 : EDGEGRAD_START;
    w->end = 0;
    w->has_texts = 0;
    edgegrad_put(w, "{\"__metadata__\":{\"edgegrad.message\":\"1\"", 39);
}

static inline void edgegrad_put_text(edgegrad_writer *w, const char *name, const char *text)
{
    edgegrad_put(w, ",", 1);
    edgegrad_put_string(w, name);
    edgegrad_put(w, ":", 1);
    edgegrad_put_string(w, text);
}

/* Write a finite number, a whole one as an integer. */
static inline void edgegrad_put_number(edgegrad_writer *w, const char *name, double value)
{
    char text[40];
    if (value >= -9007199254740992.0 && value <= 9007199254740992.0
        && value == (double)(int64_t)value)
        snprintf(text, sizeof text, "%lld", (long long)value);
    else
        snprintf(text, sizeof text, "%.17g", value);
    edgegrad_put_text(w, name, text);
}

static inline void edgegrad_add(edgegrad_writer *w, const char *name, const char *dtype, int rank,
                                const int64_t *dims, size_t bytes)
{
    char text[64];
    int n;
    edgegrad_put(w, w->has_texts ? "," : "},", w->has_texts ? 1 : 2);
    w->has_texts = 1;
    edgegrad_put_string(w, name);
    n = snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":[", dtype);
    edgegrad_put(w, text, (size_t)n);
    for (int i = 0; i < rank; i++) {
        n = snprintf(text, sizeof text, i ? ",%lld" : "%lld", (long long)dims[i]);
        edgegrad_put(w, text, (size_t)n);
    }
    n = snprintf(text, sizeof text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->end,
                 (unsigned long long)(w->end + bytes));
    edgegrad_put(w, text, (size_t)n);
    w->end += bytes;
}

/* Return the number of bytes to write before the tensors; 0: the header was too small. */
static inline size_t edgegrad_end(edgegrad_writer *w)
{
    edgegrad_put(w, w->has_texts ? "}" : "}}", w->has_texts ? 1 : 2);
    while (w->used <= w->size && w->used % 8)
        edgegrad_put(w, " ", 1);
    if (w->used > w->size)
        return 0;
    uint64_t length = w->used - EDGEGRAD_START;
    for (int i = 0; i < EDGEGRAD_START; i++)
        w->out[i] = (char)(length >> (8 * i) & 0xFF);
    return w->used;
}

#endif
