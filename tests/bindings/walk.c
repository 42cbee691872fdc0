/* Every function in C with values that nobody should pass: walk CHECKPOINT CALLS ROUNDS. */
#include "mnist.h"
#include "walk.h"

static const char *said_of(const mnist *m) { return mnist_message(m); }

/*@calls@*/

static const struct {
    const char *name;
    void (*call)(mnist *m, char **w);
} calls[] = {
/*@rows@*/
};

static void make(const struct row *row, mnist *m)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i].name, row->name)) {
            calls[i].call(m, (char **)row->words);
            drop_blocks();
            return;
        }
    abort();
}

/* All that a checkpoint holds: a refused call leaves it as it was. */
static char *keep(mnist *m, size_t *size)
{
#if MNIST_TRAINS
    *size = mnist_checkpoint_size(m, 1);
    char *made = malloc(*size);
    if (!made || mnist_save_to(m, made, *size, 1))
        abort();
#else
    size_t count = mnist_parameters_size(m, 0);
    *size = count * 4;
    char *made = malloc(*size + 1);
    if (!made || mnist_get_parameters(m, (float *)made, count, 0))
        abort();
#endif
    return made;
}

static long long count_tokens(const mnist *m)
{
#if MNIST_DECODES
    return mnist_get_length(m);
#else
    (void)m;
    return 0;
#endif
}

int main(int argc, char **argv)
{
    mnist *live, *bare, *ended = NULL;
    char why[MNIST_MESSAGE_BYTES];
    const char *path = argc == 4 && strcmp(argv[1], "-") ? argv[1] : NULL; /* values of its own */
    if (argc != 4 || mnist_create(&live, path, why) || mnist_create_from(&bare, NULL, 0, why))
        return 2;
    int count = read_rows(argv[2], rows);
    for (int i = 0; i < count; i++) {
        mnist *m = rows[i].state[0] == 'l' ? live : rows[i].state[0] == 'b' ? bare : ended;
        size_t size, after_size;
        char *before = keep(live, &size);
        const long long length = count_tokens(live);
        make(&rows[i], m);
        char *after = keep(live, &after_size);
        int is_same = size == after_size && !memcmp(before, after, size) &&
                      length == count_tokens(live);
        printf("%d %s%s\n", i, said, said[0] == 'o' || is_same ? "" : " changed");
        free(before);
        free(after);
    }
    long first = 0;
    int rounds = atoi(argv[3]);
    for (int turn = 0; turn < rounds; turn++) {
        for (int i = 0; i < count; i++)
            make(&rows[i], rows[i].state[0] == 'l' ? live : rows[i].state[0] == 'b' ? bare : ended);
        first = turn == rounds / 2 ? read_resident() : first;
    }
    printf("grown %ld\n", (read_resident() - first) >> 20);
    mnist_destroy(live);
    mnist_destroy(bare);
    mnist_destroy(NULL);
    return 0;
}
