/* Continues a text with the decoder of a library, which may have no checkpoint, and writes the
 * bytes of the scores after each call; tests/support/decoders.py has the same calls.
 * usage: tokens CHECKPOINT|- SCORES */

#include "mnist.h"

#include <stdio.h>
#include <string.h>

static FILE *file;

static int append(mnist *m, const int32_t *tokens, size_t count)
{
    int code = mnist_append(m, tokens, count);
    if (code || !mnist_scores(m))
        return fprintf(stderr, "%s\n", mnist_message(m)), 1;
    return fwrite(mnist_scores(m), 1, mnist_scores_info(m)->bytes, file) == 0;
}

static void refuse(mnist *m, int code)
{
    const char *name = code == MNIST_BAD_LABEL   ? "BAD_LABEL"
                       : code == MNIST_BAD_INPUT ? "BAD_INPUT"
                                                 : "other";
    printf("refused %s: %s\n", code ? name : "not", mnist_message(m));
}

int main(int argc, char **argv)
{
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    int32_t prompt[MNIST_POSITIONS] = {5, 7, 9, 11, 13}, bad = 100, last = 8;
    file = argc == 3 ? fopen(argv[2], "wb") : NULL;
    if (!file)
        return 2;
    if (mnist_create(&m, strcmp(argv[1], "-") ? argv[1] : NULL, why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (mnist_scores(m) || mnist_get_length(m) || mnist_append(m, prompt, 0) != MNIST_BAD_INPUT)
        return 3;
    if (append(m, prompt, 5))
        return 1;
    for (int32_t token = 3; token < 13; token++)
        if (append(m, &token, 1))
            return 1;
    refuse(m, mnist_append(m, &bad, 1));
    refuse(m, mnist_append(m, prompt, 26));
    refuse(m, mnist_append(m, prompt, 0));
    refuse(m, mnist_truncate(m, 16));
    if (mnist_append(m, NULL, 1) != MNIST_BAD_INPUT || mnist_append(NULL, &last, 1) == MNIST_OK
        || mnist_append(m, prompt, (size_t)-1) != MNIST_BAD_INPUT
        || mnist_truncate(m, -1) != MNIST_BAD_INPUT || mnist_truncate(NULL, 0) != MNIST_BAD_INPUT
        || mnist_scores(NULL) || mnist_scores_info(NULL) || mnist_get_capacity(NULL))
        return 3;
    printf("length %d of %d\n", (int)mnist_get_length(m), (int)mnist_get_capacity(m));
    if (mnist_truncate(m, 7))
        return 3;
    printf("forgotten %s\n", mnist_scores(m) ? "false" : "true");
    if (append(m, &last, 1))
        return 1;
    int32_t below = -1, mixed[] = {8, 1, 100};
    if (mnist_append(m, &below, 1) != MNIST_BAD_LABEL
        || mnist_append(m, mixed, 3) != MNIST_BAD_LABEL || mnist_get_length(m) != 8
        || mnist_scores(m))
        return 3; /* the first tokens of a call that fails are forgotten */
    fclose(file);
    mnist_destroy(m);
    return 0;
}
