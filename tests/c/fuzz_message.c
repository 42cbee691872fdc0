/* The reader of messages of a federation: whatever it gives lies in the message. */

#include "fuzz.h"
#include "messages.h"

const char *const fuzz_words[] = {
    "[", "{", "}", "]", "\"", "99999999999999999999", "-1", "\\ud800", "\\u0041", "\\u", "\\",
    ",", ":", "0", "1e999", "\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"F32\"",
    "\"__metadata__\"", "fc.weight", "null", NULL,
};

void fuzz_mend(unsigned char *data, size_t size)
{
    (void)data;
    (void)size;
}

int fuzz_take(const unsigned char *data, size_t size)
{
    const char *wrong;
    char text[32];
    static const char *const names[] = {"fc.weight", "fc.bias", "", "config.rate"};
    struct request m;
    struct entry t;
    float number;
    size_t sum = 0;
    wrong = message_open(&m, data, size);
    if (wrong)
        return wrong[0] ? 1 : 2;
    for (int k = 0; k < 4; k++) {
        if (message_find(&m, names[k], &t)) {
            const unsigned char *begin = t.data;
            if (t.bytes && (begin < data || t.bytes > (size_t)(data + size - begin)))
                abort();
            for (size_t i = 0; i < t.bytes; i++)
                sum += begin[i];
        }
        if (message_text(&m, names[k], text, sizeof text))
            sum += strlen(text);
        if (message_text(&m, names[k], text, sizeof text) && read_number(text, &number))
            sum += number > 1;
    }
    sum += (size_t)message_checks(&m);
    sum += message_text(&m, "kind", text, sizeof text) ? strlen(text) : 0;
    return sum == (size_t)-1; /* so that all of it is read */
}
