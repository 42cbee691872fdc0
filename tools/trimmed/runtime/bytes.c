/* Functions for bytes and messages, instead of string.h and stdio.h. */

#define TEXT_OF_WORD(word) #word
#define TEXT_OF(word) TEXT_OF_WORD(word) /* the definition of a macro as text */

#define ALIGNED(n) (((n) + 63) / 64 * 64)

/* In a loop, this keeps the compiler from replacing the loop with a call of the C library. */
#define NO_LIBRARY_CALL() __asm__ volatile("" ::: "memory")

/* Copy bytes.  Copy structs with this, too: for an assignment, compilers may call memcpy. */
static void copy(void *to, const void *from, size_t n)
{
#ifdef EDGEGRAD_FREESTANDING
    uint8_t *t = to;
    const uint8_t *f = from;
    if (((uintptr_t)t | (uintptr_t)f) % 8 == 0)
        for (; n >= 8; n -= 8, t += 8, f += 8) {
            *(uint64_t *)(void *)t = *(const uint64_t *)(const void *)f;
            NO_LIBRARY_CALL();
        }
    for (; n; n--) {
        *t++ = *f++;
        NO_LIBRARY_CALL();
    }
#else
    if (n)
        memcpy(to, from, n);
#endif
}

static void zero(void *to, size_t n)
{
#ifdef EDGEGRAD_FREESTANDING
    uint8_t *t = to;
    for (; n; n--) {
        *t++ = 0;
        NO_LIBRARY_CALL();
    }
#else
    if (n)
        memset(to, 0, n);
#endif
}

static size_t length(const char *text)
{
    size_t n = 0;
    while (text[n]) {
        n++;
        NO_LIBRARY_CALL();
    }
    return n;
}

/* Compare two UTF-8 strings in the order of Unicode code points; return -1, 0 or 1. */
static int compare(const char *a, size_t na, const char *b, size_t nb)
{
    size_t n = na < nb ? na : nb;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            return (uint8_t)a[i] < (uint8_t)b[i] ? -1 : 1;
    return na < nb ? -1 : na > nb;
}

/* Return 1 if bytes are well-formed UTF-8, without overlong forms, surrogates, or codes past
 * U+10FFFF. */
static int is_utf8(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint8_t c = s[i++];
        if (c < 0x80)
            continue;
        int more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2
                   : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
        if (!more || (size_t)more > n - i)
            return 0;
        uint8_t low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
        uint8_t high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        if (s[i] < low || s[i] > high)
            return 0;
        for (i++; --more; i++)
            if (s[i] < 0x80 || s[i] > 0xBF)
                return 0;
    }
    return 1;
}

struct text {
    char *out;
    size_t size, used;
};

static void put_char(struct text *t, char c)
{
    if (t->used + 1 < t->size)
        t->out[t->used++] = c;
}

/* Append at most `limit` bytes of a string.  It may come from a file and be printed on a terminal,
 * so control characters become question marks. */
static void put_string(struct text *t, const char *s, size_t limit)
{
    for (size_t i = 0; i < limit && s[i]; i++)
        put_char(t, (uint8_t)s[i] < 0x20 || s[i] == 0x7F ? '?' : s[i]);
}

static void put_number(struct text *t, int64_t value)
{
    char digits[20];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[n++] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        put_char(t, '-');
    while (n)
        put_char(t, digits[--n]);
}

/* Write a message: in the format, %s stands for a string and %d for an int64_t. */
static void write_line(char *out, size_t size, const char *format, va_list values)
{
    struct text t = {out, size, 0};
    for (; *format; format++) {
        if (*format != '%')
            put_char(&t, *format);
        else if (*++format == 's')
            put_string(&t, va_arg(values, const char *), 80);
        else
            put_number(&t, va_arg(values, int64_t));
    }
    out[t.used] = 0;
}

/* A CRC-32, as of zlib, that takes the bytes from the last to the first, as a writer of FlatBuffers
 * has them.  Both are remainders of polynomials: `sum` of the bits so far, `power` of x to the n
 * after n bits.  In a word the lowest bit is the highest power. */
struct crc {
    uint32_t sum, power;
};

static uint32_t times_x(uint32_t value)
{
    return value >> 1 ^ (0xEDB88320 & (0 - (value & 1)));
}

static void begin_crc(struct crc *c)
{
    c->sum = 0;
    c->power = 0x80000000; /* x to the 0 */
}

/* Take the bytes that lie before the ones taken so far; NULL: zeros. */
static void take_before(struct crc *c, const uint8_t *bytes, size_t n)
{
    while (n--) {
        uint32_t byte = bytes ? bytes[n] : 0;
        for (int bit = 7; bit >= 0; bit--) {
            c->sum ^= c->power & (0 - (byte >> bit & 1));
            c->power = times_x(c->power);
        }
    }
}

/* Return the CRC-32: the sum times x to the 32, with 32 ones before the first bit and 32 added. */
static uint32_t end_crc(const struct crc *c)
{
    uint32_t sum = c->sum, power = c->power;
    for (int bit = 0; bit < 32; bit++) {
        sum = times_x(sum);
        NO_LIBRARY_CALL();
    }
    for (int bit = 0; bit < 32; bit++) {
        sum ^= power;
        power = times_x(power);
        NO_LIBRARY_CALL();
    }
    return ~sum;
}

static uint32_t crc32(const uint8_t *bytes, size_t n)
{
    struct crc c;
    begin_crc(&c);
    take_before(&c, bytes, n);
    return end_crc(&c);
}
