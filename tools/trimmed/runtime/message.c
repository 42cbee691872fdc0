/* Messages of a federation: files of safetensors, read in place, and texts and numbers of JSON.
 *
 * Nothing is allocated.  Messages may be hostile: message_open checks that the tensors fill the
 * data without overlap or gap, and that no name occurs twice.  Numbers are little-endian, so the
 * machine must be, too. */

#if MODEL_FEDERATED

#define MESSAGE_HEADER 65536 /* bytes at most; the time of checking grows with its square */

enum {
    MESSAGE_RANK = 32,
    MESSAGE_START = 8 /* bytes before the header */
};

struct request {
    const char *header, *end; /* from `{` to after `}` */
    const unsigned char *data;
    size_t bytes; /* of data */
};

struct entry {
    char dtype[8]; /* "F32", "I64", ... */
    int rank;
    uint64_t dims[MESSAGE_RANK];
    const void *data; /* at any address: copy it */
    size_t bytes;
};

static int is_text(const char *a, size_t n, const char *text)
{
    return !compare(a, n, text, length(text));
}

/* --- numbers, without floating-point operations that a small CPU lacks */

/* A positive number: bits, times 2 to the exponent.  The highest bit is set. */
struct scaled {
    uint64_t bits;
    int exponent;
};

static void normalise(struct scaled *s)
{
    for (; !(s->bits >> 63); s->exponent--)
        s->bits <<= 1;
}

static void times_ten(struct scaled *s)
{
    s->bits = (s->bits >> 4) * 10;
    s->exponent += 4;
    normalise(s);
}

static void over_ten(struct scaled *s)
{
    s->bits /= 10;
    normalise(s);
}

/* Make a float of its sign, its bits and its exponent; return 0 if it would be infinite.  Numbers
 * that are too small for a normal float become 0. */
static int join_float(uint32_t sign, const struct scaled *s, float *out)
{
    uint32_t fraction = (uint32_t)(s->bits >> 40), word;
    uint64_t rest = s->bits << 24, half = (uint64_t)1 << 63;
    int exponent = s->exponent + 63;
    fraction += rest > half || (rest == half && (fraction & 1)); /* to nearest, ties to even */
    if (fraction >> 24) {
        fraction >>= 1;
        exponent++;
    }
    if (exponent > 127)
        return 0;
    word = exponent < -126 ? 0 : (uint32_t)(exponent + 127) << 23 | (fraction & 0x7FFFFF);
    word |= sign << 31;
    copy(out, &word, sizeof word);
    return 1;
}

/* Read a number of JSON; return 1 if the whole text is one, and finite. */
static int read_number(const char *text, float *out)
{
    struct scaled s = {0, 0};
    int decimals = 0, digits = 0, power = 0;
    uint32_t sign = *text == '-';
    text += sign;
    for (int is_fraction = 0; (*text >= '0' && *text <= '9') || (*text == '.' && !is_fraction);
         text++) {
        if (*text == '.') {
            is_fraction = 1;
            continue;
        }
        digits++;
        if (s.bits < 100000000000000000u)
            s.bits = s.bits * 10 + (uint64_t)(*text - '0');
        else
            decimals--; /* a digit that no float has */
        decimals += is_fraction;
    }
    if (!digits)
        return 0;
    if (*text == 'e' || *text == 'E') {
        int is_negative = text[1] == '-', count = 0;
        for (text += 1 + (is_negative || text[1] == '+'); *text >= '0' && *text <= '9'; text++)
            if (count++ < 4)
                power = power * 10 + (*text - '0');
        if (!count)
            return 0;
        power = is_negative ? -power : power;
    }
    if (*text)
        return 0;
    power -= decimals;
    if (s.bits) {
        normalise(&s);
        for (; power > 0 && s.exponent < 200; power--)
            times_ten(&s);
        for (; power < 0 && s.exponent > -300; power++)
            over_ten(&s);
    }
    if (s.bits && !power)
        return join_float(sign, &s, out);
    sign <<= 31;
    copy(out, &sign, sizeof sign); /* zero, or so small that it becomes zero */
    return !s.bits || power < 0;
}

/* Append a finite float with 9 digits, as JSON has numbers. */
static void put_float(struct text *t, float value)
{
    uint32_t word;
    uint8_t digits[9];
    int power = 0, count = 9;
    copy(&word, &value, sizeof word);
    struct scaled s = {word & 0x7FFFFF, (int)(word >> 23 & 0xFF)};
    if (word >> 31)
        put_char(t, '-');
    if (!(word << 1)) {
        put_char(t, '0');
        return;
    }
    s.bits |= s.exponent ? 0x800000u : 0;
    s.exponent += !s.exponent - 150;
    normalise(&s);
    for (; s.exponent > -60 || (s.exponent == -60 && s.bits >> 60 >= 10); power++)
        over_ten(&s);
    for (; s.exponent < -63; power--)
        times_ten(&s);
    uint64_t rest = s.bits >> (-60 - s.exponent); /* the number from 1 to 10, times 2 to the 60 */
    for (int i = 0; i < count; i++) {
        digits[i] = (uint8_t)(rest >> 60);
        rest = (rest & (((uint64_t)1 << 60) - 1)) * 10;
    }
    int i = count;
    for (int carry = rest >> 60 >= 5; carry && i-- > 0;) {
        carry = digits[i] == 9;
        digits[i] = (uint8_t)(carry ? 0 : digits[i] + 1);
    }
    if (i < 0) { /* 9.99... became 10 */
        digits[0] = 1;
        power++;
    }
    while (count > 1 && !digits[count - 1])
        count--;
    for (i = 0; i < count; i++) {
        put_char(t, (char)('0' + digits[i]));
        if (!i && count > 1)
            put_char(t, '.');
    }
    if (power) {
        put_char(t, 'e');
        put_number(t, power);
    }
}

/* --- reading: a cursor over the header, which becomes NULL at the first error */

static const char *message_space(const char *at, const char *end)
{
    while (at && at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* Skip spaces and the character that must follow them; return the place after it. */
static const char *message_skip(const char *at, const char *end, char wanted)
{
    at = message_space(at, end);
    return at && at < end && *at == wanted ? at + 1 : NULL;
}

static int message_next_is(const char *at, const char *end, char wanted)
{
    return message_skip(at, end, wanted) != NULL;
}

static const char *message_hex(const char *at, const char *end, uint32_t *value)
{
    *value = 0;
    if (!at || end - at < 4)
        return NULL;
    for (int i = 0; i < 4; i++, at++) {
        char c = *at;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
                       : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                       : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10 : 16;
        if (digit > 15)
            return NULL;
        *value = *value << 4 | digit;
    }
    return at;
}

/* Skip a quoted text; copy its first `size` bytes to `out` and its length to `length`. */
static const char *message_string(const char *at, const char *end, char *out, size_t size,
                                  size_t *length)
{
    size_t n = 0;
    at = message_skip(at, end, '"');
    while (at && at < end && *at != '"') {
        uint32_t c = (unsigned char)*at++, low;
        int is_escaped = 0;
        if (c < 0x20)
            return NULL;
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            size_t which = 0;
            while (at < end && from[which] && from[which] != *at)
                which++;
            if (at < end && *at == 'u') {
                at = message_hex(at + 1, end, &c);
                if (at && c >= 0xD800 && c < 0xDC00) { /* the first of a pair */
                    at = end - at > 6 && at[0] == '\\' && at[1] == 'u'
                       ? message_hex(at + 2, end, &low) : NULL;
                    if (!at || low < 0xDC00 || low > 0xDFFF)
                        return NULL;
                    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
                } else if (c >= 0xDC00 && c < 0xE000) {
                    return NULL;
                }
                is_escaped = 1;
            } else if (at < end && from[which]) {
                c = (unsigned char)to[which];
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

static const char *message_count(const char *at, const char *end, uint64_t *value)
{
    at = message_space(at, end);
    const char *first = at;
    *value = 0;
    for (; at && at < end && *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');
        if (*value > (UINT64_MAX / 2 - digit) / 10 || (at > first && *first == '0'))
            return NULL;
        *value = *value * 10 + digit;
    }
    return at == first ? NULL : at;
}

/* Read a list of at most `most` whole numbers, and skip it. */
static const char *message_counts(const char *at, const char *end, uint64_t *values,
                                  int most, int *count)
{
    *count = 0;
    at = message_skip(at, end, '[');
    if (message_next_is(at, end, ']'))
        return message_skip(at, end, ']');
    while (at) {
        if (*count == most)
            return NULL;
        at = message_count(at, end, &values[(*count)++]);
        if (!message_next_is(at, end, ','))
            return message_skip(at, end, ']');
        at = message_skip(at, end, ',');
    }
    return NULL;
}

static size_t message_item(const char *dtype)
{
    static const char names[][5] = {MESSAGE_TYPES};
    static const uint8_t sizes[] = {MESSAGE_TYPE_BYTES};
    for (size_t k = 0; k < sizeof sizes; k++)
        if (is_text(dtype, length(dtype), names[k]))
            return sizes[k];
    return 0;
}

/* Skip the entry of a tensor, {"dtype": ..., "shape": [...], "data_offsets": [...]}. */
static const char *message_entry(const struct request *m, const char *at, struct entry *t)
{
    uint64_t offsets[2] = {0, 0}, bytes;
    int seen = 0, count;
    size_t length;
    char key[16];
    at = message_skip(at, m->end, '{');
    while (at) {
        int which;
        at = message_string(at, m->end, key, sizeof key, &length);
        at = message_skip(at, m->end, ':');
        if (at && is_text(key, length, "dtype")) {
            which = 1;
            at = message_string(at, m->end, t->dtype, sizeof t->dtype - 1, &length);
            if (!at || length > sizeof t->dtype - 1)
                return NULL;
            t->dtype[length] = 0;
        } else if (at && is_text(key, length, "shape")) {
            which = 2;
            at = message_counts(at, m->end, t->dims, MESSAGE_RANK, &t->rank);
        } else if (at && is_text(key, length, "data_offsets")) {
            which = 4;
            at = message_counts(at, m->end, offsets, 2, &count);
            if (count != 2)
                return NULL;
        } else {
            return NULL;
        }
        if (!at || seen & which)
            return NULL;
        seen |= which;
        if (!message_next_is(at, m->end, ','))
            break;
        at = message_skip(at, m->end, ',');
    }
    at = message_skip(at, m->end, '}');
    if (!at || seen != 7 || offsets[1] < offsets[0] || offsets[1] > m->bytes)
        return NULL;
    bytes = message_item(t->dtype);
    int is_empty = 0;
    for (int i = 0; i < t->rank; i++) {
        uint64_t d = t->dims[i] ? t->dims[i] : 1;
        is_empty |= !t->dims[i];
        if (bytes > (uint64_t)INT64_MAX / d) /* compilers call a library for UINT64_MAX */
            return NULL;
        bytes *= d;
    }
    if (!bytes || (is_empty ? 0 : bytes) != offsets[1] - offsets[0])
        return NULL;
    t->data = m->data + offsets[0];
    t->bytes = is_empty ? 0 : (size_t)bytes;
    return at;
}

/* The entry that message_walk searches for, and the results. */
struct search {
    const char *name; /* name of a tensor, or NULL */
    const char *text; /* name of a text, or NULL */
    char *out;
    size_t size;
    int length;          /* of the text; -1: none */
    int checks;          /* whether all texts are checked: the request may have no others */
    struct entry *into;  /* the tensor with the name */
    int tensors;         /* how many have the name */
    int number;          /* of the tensor to compare with all later ones; -1: none */
    uint64_t total;      /* bytes of all tensors */
    int count;           /* of all tensors */
};

/* Return 1 if a request may have a text: one of the fixed ones, or an option, which is a number, a
 * truth value or a text of JSON.
 *
 * value: its first bytes, with room for a null after `size`. */
static int is_field(const char *name, size_t length, char *value, size_t n, size_t size)
{
    float unused;
    if (is_text(name, length, "edgegrad.message") || is_text(name, length, "kind")
        || is_text(name, length, "model") || is_text(name, length, "round"))
        return 1;
    if (length < 7 || compare(name, 7, "config.", 7) || !n)
        return 0;
    if (value[0] == '"')
        return n > 1 && (n > size || value[n - 1] == '"');
    if (n > size)
        return 0;
    value[n] = 0;
    return is_text(value, n, "true") || is_text(value, n, "false") || read_number(value, &unused);
}

/* Skip the metadata; copy the text that is searched for. */
static const char *message_texts(const struct request *m, const char *at, struct search *s)
{
    char key[64], value[64];
    size_t length, bytes;
    at = message_skip(at, m->end, '{');
    if (message_next_is(at, m->end, '}'))
        return message_skip(at, m->end, '}');
    while (at) {
        at = message_string(at, m->end, key, sizeof key, &length);
        at = message_skip(at, m->end, ':');
        int is_it = at && s->text && length <= sizeof key && is_text(key, length, s->text);
        at = message_string(at, m->end, is_it ? s->out : value, is_it ? s->size : sizeof value - 1,
                            &bytes);
        if (at && s->checks
            && (length > sizeof key || !is_field(key, length, value, bytes, sizeof value - 1)))
            return NULL;
        if (at && is_it) {
            if (s->length >= 0 || bytes > 0x7FFFFFFF)
                return NULL;
            s->length = (int)bytes;
        }
        if (!message_next_is(at, m->end, ','))
            return message_skip(at, m->end, '}');
        at = message_skip(at, m->end, ',');
    }
    return NULL;
}

/* Go over the whole header; return 0 if it is malformed. */
static int message_walk(const struct request *m, struct search *s)
{
    char key[256], mine[256];
    size_t length, my_length = 0;
    struct entry t, other;
    int has_texts = 0;
    const char *at = message_skip(m->header, m->end, '{');
    s->length = -1;
    s->tensors = s->count = 0;
    s->total = 0;
    other.bytes = 0;
    other.data = NULL;
    if (message_next_is(at, m->end, '}'))
        return message_space(message_skip(at, m->end, '}'), m->end) == m->end;
    while (at) {
        at = message_string(at, m->end, key, sizeof key, &length);
        at = message_skip(at, m->end, ':');
        if (!at || length > sizeof key)
            return 0;
        if (is_text(key, length, "__metadata__")) {
            if (has_texts++)
                return 0;
            at = message_texts(m, at, s);
        } else {
            at = message_entry(m, at, &t);
            if (!at)
                return 0;
            if (s->name && is_text(key, length, s->name)) {
                copy(s->into, &t, sizeof t);
                s->tensors++;
            }
            if (s->count == s->number) {
                copy(mine, key, length);
                my_length = length;
                copy(&other, &t, sizeof t);
            } else if (s->number >= 0 && s->count > s->number) {
                const unsigned char *a = t.data, *b = other.data;
                if (!compare(key, length, mine, my_length)
                    || (t.bytes && other.bytes && a < b + other.bytes && b < a + t.bytes))
                    return 0;
            }
            s->total += t.bytes;
            s->count++;
        }
        if (!message_next_is(at, m->end, ','))
            break;
        at = message_skip(at, m->end, ',');
    }
    at = message_space(message_skip(at, m->end, '}'), m->end);
    return at == m->end;
}

/* Copy the text with this name in the metadata, null-terminated; return 1 if it exists and fits. */
static int message_text(const struct request *m, const char *name, char *out, size_t size)
{
    struct search s;
    zero(&s, sizeof s);
    s.text = name, s.out = out, s.size = size - 1, s.number = -1;
    if (!message_walk(m, &s) || s.length < 0 || (size_t)s.length >= size)
        return 0;
    out[s.length] = 0;
    return 1;
}

/* Find the tensor with this name; return 1 if it exists. */
static int message_find(const struct request *m, const char *name, struct entry *out)
{
    struct search s;
    zero(&s, sizeof s);
    s.name = name, s.into = out, s.number = -1;
    return message_walk(m, &s) && s.tensors == 1;
}

/* Return 1 if a request has only texts that it may have. */
static int message_checks(const struct request *m)
{
    struct search s;
    zero(&s, sizeof s);
    s.checks = 1, s.number = -1;
    return message_walk(m, &s);
}

/* Return the number of tensors. */
static int message_tensors(const struct request *m)
{
    struct search s;
    zero(&s, sizeof s);
    s.number = -1;
    return message_walk(m, &s) ? s.count : 0;
}

/* Read a message in place, without a copy; return what is wrong with it, or NULL. */
static const char *message_open(struct request *m, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    uint64_t n = 0;
    char version[4];
    struct search s;
    if (size < MESSAGE_START)
        return "a message has at least 8 bytes";
    for (int i = MESSAGE_START; i-- > 0;)
        n = n << 8 | at[i];
    if (n > size - MESSAGE_START)
        return "the header is longer than the message: no message, or a part of one";
    if (n > MESSAGE_HEADER)
        return "the header is longer than " TEXT_OF(MESSAGE_HEADER) " bytes";
    m->header = (const char *)at + MESSAGE_START;
    m->end = m->header + n;
    m->data = at + MESSAGE_START + n;
    m->bytes = size - MESSAGE_START - (size_t)n;
    zero(&s, sizeof s);
    s.number = -1;
    if (!message_walk(m, &s))
        return "the header is malformed, or tensors lie outside of the data";
    if (s.total != m->bytes)
        return "the tensors are not as long as the data: overlap, gap or tail";
    for (int k = 0, count = s.count; k < count; k++) {
        s.number = k;
        if (!message_walk(m, &s))
            return "two tensors have one name, or overlap";
    }
    if (!message_text(m, "edgegrad.message", version, sizeof version))
        return "not a message of a federation: 'edgegrad.message' is missing";
    return is_text(version, length(version), "1") ? NULL : "a message of another version than 1";
}

/* --- writing: bytes are only counted where there is no buffer for them */

struct letter {
    uint8_t *out; /* large enough; NULL: count */
    size_t used;
};

static void add_bytes(struct letter *w, const void *bytes, size_t n)
{
    if (w->out)
        copy(w->out + w->used, bytes, n);
    w->used += n;
}

static void add_plain(struct letter *w, const char *text)
{
    add_bytes(w, text, length(text));
}

static void add_quoted(struct letter *w, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    add_plain(w, "\"");
    for (; *text; text++) {
        uint8_t c = (uint8_t)*text;
        char escape[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        int is_plain = c >= 0x20 && c != '"' && c != '\\';
        add_bytes(w, is_plain ? text : escape, is_plain ? 1 : sizeof escape);
    }
    add_plain(w, "\"");
}

static void add_pair(struct letter *w, const char *name, const char *text)
{
    add_plain(w, ",");
    add_quoted(w, name);
    add_plain(w, ":");
    add_quoted(w, text);
}

static void add_integer(struct letter *w, int64_t value)
{
    char digits[24];
    struct text t = {digits, sizeof digits, 0};
    put_number(&t, value);
    add_bytes(w, digits, t.used);
}
#endif
