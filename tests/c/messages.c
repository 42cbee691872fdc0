/* Reads a message, changes bytes of it at random, and looks at what is still accepted: everything
 * that message_find gives lies in the message.  Built with sanitizers, on memory of the very size.
 *
 *     messages FILE SEED ROUNDS
 */

#include "messages.h"

static unsigned long long state;

static unsigned next(unsigned below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % below;
}

int main(int argc, char **argv)
{
    static unsigned char whole[1 << 16];
    static const char words[][10] = {"[", "{", "\"", "99999999", "-1", "\\ud800", "\\u0041", "\\",
                                     ",", "0"};
    const char *wrong;
    char text[32];
    unsigned long accepted = 0, refused = 0, sum = 0;
    struct request m;
    struct entry t;
    float number;
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (!file)
        return 2;
    size_t size = fread(whole, 1, sizeof whole, file);
    fclose(file);
    state = strtoull(argv[2], NULL, 10);
    wrong = message_open(&m, whole, size);
    if (wrong) {
        puts(wrong);
        return 1;
    }
    for (long round = strtol(argv[3], NULL, 10); round > 0; round--) {
        size_t left = next(8) ? size : next((unsigned)size);
        unsigned char *bytes = malloc(left ? left : 1);
        memcpy(bytes, whole, left);
        for (unsigned n = 1 + next(3); left && n > 0; n--) {
            size_t at = next(4) ? 8 + next(400) : next((unsigned)left);
            const char *word = words[next(10)];
            size_t count = next(2) ? 1 : strlen(word);
            for (size_t i = 0; i < count && at + i < left; i++)
                bytes[at + i] = count == 1 ? (unsigned char)next(256) : (unsigned char)word[i];
        }
        if (message_open(&m, bytes, left)) {
            refused++;
        } else {
            accepted++;
            for (int k = 0; k < 2; k++)
                if (message_find(&m, k ? "fc.weight" : "fc.bias", &t))
                    for (size_t i = 0; i < t.bytes; i++)
                        sum += ((const unsigned char *)t.data)[i];
            sum += message_text(&m, "kind", text, sizeof text) ? strlen(text) : 0;
            sum += message_text(&m, "config.rate", text, sizeof text) && read_number(text, &number)
                       ? number > 1 : 0;
            sum += (unsigned)message_checks(&m);
        }
        free(bytes);
    }
    printf("accepted %lu refused %lu sum %lu\n", accepted, refused, sum & 1);
    return 0;
}
