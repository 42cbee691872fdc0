/* What a plan file says, as the runtime has it; plan_read.c reads it. */

typedef void (*kernel)(const void *words, int64_t tid, int64_t threads);

#define HIDDEN __attribute__((visibility("hidden")))
extern const kernel kernel_table[] HIDDEN; /* of all plans, then launch and worker */
#ifdef OWN_PLANS_BYTES
extern const uint8_t own_plans[] HIDDEN; /* the plans of this build */
#else
extern const char kernel_names[] HIDDEN; /* symbols in the order of the table, each with a 0 */
#endif

struct parameter {
    model_tensor tensor;
    size_t offset; /* into the parameters, and into the gradients when trainable */
    size_t elements;
    int listed; /* an input of the training model */
};

struct port {
    model_tensor tensor;
    size_t at; /* bytes from the start of the model, as all that follow */
};

struct plan {
    int64_t *table; /* of steps, as the executor has it; their arguments follow */
    int64_t steps;
    size_t fault; /* the status words; 0: no kernel reports */
    size_t reset; /* the flag that overwrites gradients; 0: none */
    size_t noise; /* seed and step of the random numbers; 0: none */
    int inputs, outputs;
    const struct port *ports; /* inputs, then outputs */
};

enum { OPTIMIZER = 3, PHASES }; /* phases of enum model_phase, then that of the optimizer */

enum { MOST_STATES = 6, MOST_DIMS = 64 };

enum form { F_PARAMETER, F_ROWS, F_COLUMNS, F_SCALAR, FORMS };

/* A row of the optimizer's table of states, a tensor for each trained parameter
 * (engine/runtime/states.py has the forms). */
struct state {
    int form, dtype;
    uint64_t initial; /* its first bytes are an element before the first step */
    size_t at; /* where the tensors begin, of one parameter behind another */
};

/* Places are bytes from the start of the model; arrays lie there too. */
struct design {
    const char *build;
    const uint32_t *kernels; /* of each row of T_KERNEL, its number in this library */
    const struct parameter *parameters;
    const uint32_t *sorted; /* parameters by name, trainable ones first */
    const int64_t *batches;
    struct plan *plans; /* OPTIMIZER, then for each batch those of enum model_phase */
    uint32_t *places;   /* scratch of the checkpoint's reader and writer */
    uint8_t *seen;
    struct state states[MOST_STATES];
    int parameter_count, trainable, state_count, batch_count;
    size_t properties_at, param_at, grad_at, state_at, work_at, total;
    size_t rate_at, step_at;
};

#define LEARNING_RATE "edgegrad.learning_rate" /* kept among the properties of a file */
