/* Models in several threads, as the header allows it, for ThreadSanitizer.
 *
 * usage: threads CHECKPOINT WHAT
 *   models   two models train at once, each in a thread of its own with a team of its own
 *   handed   one model is used by three threads, one at a time
 *   refused  bad labels, which two threads meet at once, stop a step of each of two models, the
 *            lowest is reported, and training goes on
 *   written  a thread writes a parameter while another one trains: a race that must be found
 *   told     a thread sets the learning rate while another one trains: likewise */

#include "mnist.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, SAMPLES = 256 };

#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char *checkpoint;
static float pixels[SAMPLES * 64];
static int64_t labels[SAMPLES], wrong[SAMPLES];

struct work {
    mnist *model;
    pthread_mutex_t *turn; /* NULL: nobody else has the model */
    int bad;               /* the first step has labels that are none */
    float losses[STEPS];
};

static void train(mnist *m, const int64_t *of, int expected, float *loss)
{
    const void *inputs[] = {pixels, of};
    void *outputs[] = {loss};
    EXPECT(mnist_train_step(m, inputs, outputs) == expected);
    if (expected)
        return;
    EXPECT(mnist_optimizer_step(m) == MNIST_OK);
    mnist_lazy_reset_grad(m);
}

static void *life(void *argument)
{
    struct work *w = argument;
    mnist *own = w->model;
    if (!own)
        EXPECT(mnist_create(&own, checkpoint, NULL) == MNIST_OK);
    if (w->bad) {
        train(own, wrong, MNIST_BAD_LABEL, &w->losses[0]);
        EXPECT(strstr(mnist_message(own), "label 1003 at position 3 is outside [0, 10)"));
    }
    for (int i = 0; i < STEPS; i++) {
        if (w->turn)
            pthread_mutex_lock(w->turn);
        train(own, labels, MNIST_OK, &w->losses[i]);
        if (w->turn)
            pthread_mutex_unlock(w->turn);
    }
    if (!w->model)
        mnist_destroy(own);
    return NULL;
}

static void start(pthread_t *thread, void *(*does)(void *), struct work *w)
{
    EXPECT(!pthread_create(thread, NULL, does, w));
}

static void *write_parameter(void *argument)
{
    float *values = mnist_parameter(argument, 0);
    for (int i = 0; i < 1000; i++)
        values[0] = (float)i;
    return NULL;
}

static void *set_rate(void *argument)
{
    for (int i = 0; i < 1000; i++)
        mnist_set_learning_rate(argument, 0.125f);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    struct work works[3] = {{0}};
    pthread_t threads[3], other;
    mnist *m = NULL;
    if (argc != 3)
        return 2;
    checkpoint = argv[1];
    for (int i = 0; i < SAMPLES * 64; i++)
        pixels[i] = (float)(i % 256) / 256;
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i % 10, wrong[i] = i < 3 ? i : 1000 + i;
    int models = !strcmp(argv[2], "models"), refused = !strcmp(argv[2], "refused");
    int handed = !strcmp(argv[2], "handed"), count = models || refused ? 2 : handed ? 3 : 1;
    if (!models && !refused)
        EXPECT(mnist_create(&m, checkpoint, NULL) == MNIST_OK);
    for (int i = 0; i < count; i++) {
        works[i].model = m;
        works[i].turn = handed ? &turn : NULL;
        works[i].bad = refused;
        start(&threads[i], life, &works[i]);
    }
    if (!strcmp(argv[2], "written"))
        EXPECT(!pthread_create(&other, NULL, write_parameter, m));
    else if (!strcmp(argv[2], "told"))
        EXPECT(!pthread_create(&other, NULL, set_rate, m));
    else
        other = pthread_self();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (!pthread_equal(other, pthread_self()))
        pthread_join(other, NULL);
    mnist_destroy(m);
    for (int i = 0; i < STEPS && count == 2; i++)
        EXPECT(works[0].losses[i] == works[1].losses[i] && works[0].losses[i] > 0);
    puts("ok");
    return 0;
}
