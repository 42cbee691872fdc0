/* What the generated tables of a build are made of. */

typedef void (*kernel)(const void *words, int64_t tid, int64_t threads);

#define HIDDEN __attribute__((visibility("hidden")))
extern const kernel model_kernels[] HIDDEN;    /* of all plans, then launch and worker */
extern const uint8_t model_constants[] HIDDEN; /* of all plans */

struct parameter {
    model_tensor tensor;
    size_t offset; /* into the parameters, and into gradients and each moment when trainable */
    size_t elements;
    int listed; /* an input of the training model */
};

struct port {
    model_tensor tensor;
    size_t at; /* bytes from the start of the model, as all that follow */
};

struct plan {
    const uint8_t *code; /* runtime.c describes it */
    int64_t steps;
    size_t table, io;
    size_t fault; /* the status words; 0: no kernel reports */
    size_t reset; /* the flag that overwrites gradients; 0: none */
    size_t noise; /* seed and step of the random numbers; 0: none */
    int inputs, outputs;
    const struct port *ports; /* inputs, then outputs */
};

#define LEARNING_RATE "edgegrad.learning_rate" /* kept among the properties of a file */
