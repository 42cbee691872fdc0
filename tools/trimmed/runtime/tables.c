/* The structs for the content of a plan file; plan_read.c fills them. */

typedef void (*kernel)(const void *words, int64_t tid, int64_t threads);

/* A row of a table of kernels: of ELF the bytes from the start of the table to the kernel, which no
 * loader has to fill in, otherwise the kernel itself. */
#if KERNEL_DISTANCES
typedef int32_t kernel_row;
#else
typedef kernel kernel_row;
#endif

static kernel kernel_at(const kernel_row *table, size_t number)
{
#if KERNEL_DISTANCES
    return (kernel)((uintptr_t)table + (uintptr_t)(intptr_t)table[number]);
#else
    return table[number];
#endif
}

#define HIDDEN __attribute__((visibility("hidden")))

/* A build for one thread reads steps where the library has them.  The executor, which shares steps
 * among threads, has a table of them all. */
#if defined(OWN_PLANS) && MODEL_THREADS == 1
#define IN_PLACE 1
#else
#define IN_PLACE 0
#endif

/* A feature of CPUs that code uses; cpu.c explains it. */
struct need {
    uint8_t word;
    uint32_t mask; /* bits of the word that must all be set */
    const char *name;
};

/* The code of this library for a CPU, and for every CPU that has the features in `needs`. */
struct level {
    const char *cpu;
    const struct need *needs;
    size_t need_count;
    const kernel_row *kernels; /* of all plans */
#if !IN_PLACE
    size_t runner; /* the number of the kernel that runs plans; the one for other threads follows */
#endif
#ifdef OWN_PLANS
    const uint8_t *tables, *steps, *constants; /* the plans of this build */
    size_t table_bytes, step_bytes, constant_bytes; /* of what is packed, its bytes in memory */
    size_t memory; /* bytes of a model */
#endif
};

/*@levels@*/

/* Return a level by its number; of one level, compilers then know all about it. */
static const struct level *level_at(int number)
{
    return &levels[LEVELS > 1 ? number : 0];
}

#ifdef OWN_PLANS
#ifdef GRAPH_BYTES
extern const uint8_t own_graph[] HIDDEN; /* the inference model without the parameters */
#endif
#else
extern const char kernel_names[] HIDDEN; /* their symbols, in the same order, each ended by a 0 */
#endif

struct parameter {
    model_tensor tensor;
    size_t offset; /* in the parameters and, if trainable, in the gradients */
    size_t elements;
    int listed; /* whether it is an input of the training model */
    int moved;  /* whether training steps change it without an update: a statistic */
};

struct port {
    model_tensor tensor;
    size_t at; /* in bytes from the start of the model, as are all places below */
};

struct plan {
#if IN_PLACE
    const uint16_t *code; /* the steps in the library */
#else
    int64_t *table; /* of steps, as the executor reads it; their arguments follow */
#endif
    int64_t steps;
    int64_t runners; /* the threads that run steps: 1, or all of them */
    size_t fault; /* the words in which kernels report errors; 0: no kernel does */
    size_t reset; /* the flag that makes steps overwrite gradients; 0: none */
    size_t noise; /* the seed and the step of random numbers; 0: none are drawn */
    size_t scale; /* the loss scale; 0: the plan does not multiply the loss */
    size_t rate;  /* the learning rate; 0: the plan updates no parameters */
    size_t step;  /* the number of the update, from 1; 0: the formulas use none */
    size_t done;  /* the flag that is set when the update was done; 0: there is no update */
    int inputs, outputs;
    const struct port *ports; /* inputs, then outputs */
};

/* After the phases of enum model_phase, the last two of builds with a decoder. */
enum { DECODER_PLANS = MODEL_DECODES ? 2 : 0 };
enum { OPTIMIZER = 3, STEP, PROMPT, PHASES = OPTIMIZER + 1 + DECODER_PLANS };

enum { MOST_DIMS = 64 };

/* A state of the optimizer, with a tensor for each trained parameter.  engine/plan/states.py lists
 * the forms. */
struct state {
    int form, dtype;  /* dtype 0: the parameter's */
    uint64_t initial; /* the initial value of an element, if that has 8 bytes */
    uint32_t single;  /* the same, if it is a float */
    size_t at; /* where the tensor of the first parameter begins; the others follow */
};

#ifdef OWN_PLANS
#if PACKED_PLANS
/* Write the `n` bytes that are packed at `from`; tools/trimmed/packing.py describes how. */
static void unpack(uint8_t *to, size_t n, const uint8_t *from)
{
    for (const uint8_t *end = to + n; to < end;) {
        size_t token = *from++, count = token + 1;
        const uint8_t *source = from;
        if (token & 0x80) {
            size_t distance = *from++;
            if (token & 0x40)
                distance |= (size_t)*from++ << 8;
            count = (token & 0x3F) + 3;
            source = to - distance;
        } else {
            from += count;
        }
        while (count--) {
            *to++ = *source++;
            NO_LIBRARY_CALL();
        }
    }
}
#endif

/* The steps of this build; tools/trimmed/records.py describes the block that has them. */
enum { STEP_COUNT, TILING_COUNT, KIND_COUNT, PLAN_STARTS }; /* words at its start */

struct steps {
    const uint32_t *tilings;
    const uint16_t *sizes; /* of records in units, by kind of call */
    const uint16_t *code;  /* all steps, one after another */
};

static struct steps find_steps(const uint32_t *block)
{
    struct steps s;
    s.tilings = block + PLAN_STARTS + PLANS;
    s.sizes = (const uint16_t *)(const void *)(s.tilings + block[TILING_COUNT]);
    s.code = s.sizes + block[KIND_COUNT];
    return s;
}

/* A place among the steps of a plan; a run of them may be in another plan. */
struct place {
    const uint16_t *next, *after; /* after a run of another plan; NULL: in no such run */
    int64_t left;                 /* steps of the run */
};

/* Go to the run of another plan that begins at a place, if one does. */
static void enter_run(const struct steps *s, struct place *p)
{
    if (HAS_REPEATS && (*p->next & KIND) == REPEAT) {
        const uint16_t *run = p->next;
        p->next = s->code + (run[1] | (uint32_t)run[2] << 16);
        p->left = run[3];
        p->after = run + 4;
    }
}

/* Go back from such a run if these steps were its last ones. */
static void leave_run(struct place *p, int64_t steps)
{
    if (HAS_REPEATS && p->after && !(p->left -= steps)) {
        p->next = p->after;
        p->after = NULL;
    }
}
#endif

/* Everything that does not change while a model exists.  Places are in bytes from the start of the
 * model, and the arrays lie in the model's memory. */
struct design {
    const uint32_t *kernels; /* by row of T_KERNEL: the number of the kernel in this library */
    const struct parameter *parameters;
    const uint32_t *sorted; /* the parameters in the order of names, trainable ones first */
    const int64_t *batches;
    struct plan *plans; /* the optimizer's, for each batch size one for each phase, a decoder's */
    uint32_t *places;   /* scratch of the checkpoint's reader and writer */
    uint8_t *seen;
    struct state states[MOST_STATES];
    int parameter_count, trainable, state_count, batch_count;
    int keeps_states; /* whether a plan reads states, so that memory has them */
    size_t properties_at, param_at, grad_at, state_at, kept_at, work_at, total;
    size_t kept; /* bytes of a copy of all `moved` parameters */
    int copies;  /* 1: as before a step; 2: also as before all steps that wait for an update */
    size_t grad; /* bytes of the gradients; 0: training steps update the parameters themselves */
};
