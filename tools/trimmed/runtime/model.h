/* @title@
 *
 * A `model` holds parameters, gradients, optimizer state and work memory in one block, taken at
 * creation; no function allocates after that, except model_save, which needs a buffer of the size
 * of the checkpoint.  One model is used by one thread at a time; models are independent.
 *
 * Functions that return `int` return MODEL_OK (0) or an error code, and model_message tells what
 * was wrong.  A call that fails has changed nothing, unless its comment says otherwise.
 *
 *     model *m;
 *     char why[MODEL_MESSAGE_BYTES];
 *     if (model_create(&m, @plan@"checkpoint", why)) { puts(why); return 1; }
 *     const void *inputs[] = {images, labels};
 *     float loss;
 *     void *outputs[] = {&loss};
 *     model_train_step(m, inputs, outputs);       adds to the gradients
 *     model_optimizer_step(m);                    changes the parameters
 *     model_lazy_reset_grad(m);                   the next train step starts from zero gradients
 *     model_save(m, "checkpoint", 1);
 *     model_destroy(m);
 */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MODEL_API __declspec(dllexport)
#else
#define MODEL_API __attribute__((visibility("default")))
#endif

/*@constants@*/

enum model_error {
    MODEL_OK = 0,
    MODEL_BAD_INPUT,      /* an argument is null, out of range or of the wrong size */
    MODEL_BAD_LABEL,      /* a class label or an index is out of range */
    MODEL_BAD_CHECKPOINT, /* not a checkpoint, damaged, or of another model */
    MODEL_BAD_FILE,       /* a file is missing, unreadable or could not be written */
    MODEL_BAD_STATE,      /* a call in the wrong order: no parameter values, no such phase */
    MODEL_NO_MEMORY,      /* memory or threads could not be had, or the block is too small */
    MODEL_NO_NAME,        /* no parameter or property of that name */
    MODEL_BAD_PLAN        /* no plan file, damaged, or not for this library */
};

enum model_dtype { MODEL_F32 = 1, MODEL_U8 = 2, MODEL_I8 = 3, MODEL_U16 = 4, MODEL_I16 = 5,
                   MODEL_I32 = 6, MODEL_I64 = 7, MODEL_BOOL = 9, MODEL_F64 = 11, MODEL_U32 = 12,
                   MODEL_U64 = 13 };

enum model_phase { MODEL_TRAIN = 0, MODEL_EVAL = 1, MODEL_INFER = 2 };

typedef struct model model;

/* A tensor: C-contiguous, native byte order. */
typedef struct model_tensor {
    const char *name;
    int dtype; /* enum model_dtype */
    int rank;
    const int64_t *dims;
    size_t bytes;
    int trainable; /* of parameters */
} model_tensor;

/* --- life */

/*@create@*/

/* End the threads and give the memory back; NULL is allowed. */
MODEL_API void model_destroy(model *m);

/* What the last error of this model was, as one line; empty if there was none. */
MODEL_API const char *model_message(const model *m);

/* Digest of this library; the files that belong together have the same. */
MODEL_API const char *model_build(void);

#if defined(EDGEGRAD_FREESTANDING) && MODEL_THREADS > 1
/* Life of thread `tid`, from 1 to MODEL_THREADS - 1, in a thread of the caller's: call it after
 * creation; it returns after model_destroy.  Without these threads no step ends. */
MODEL_API void model_worker(model *m, int tid);
#endif

/* --- inputs and outputs */

MODEL_API int model_has_phase(const model *m, int phase);
MODEL_API int model_input_count(const model *m, int phase);
MODEL_API int model_output_count(const model *m, int phase);

/* Name, type and shape of an input or output; NULL: there is none of that index. */
MODEL_API const model_tensor *model_input_info(const model *m, int phase, int index);
MODEL_API const model_tensor *model_output_info(const model *m, int phase, int index);

/* Where the steps of a phase read an input and leave an output.  Writing inputs there and passing
 * NULL to the step saves the copy.  Outputs are valid until the next step of the phase. */
MODEL_API void *model_input(model *m, int phase, int index);
MODEL_API const void *model_output(model *m, int phase, int index);

/* --- batches: a model has plans for one number of samples or several
 *
 * Steps, inputs and outputs are those of the batch that was set last, at first those of the first.
 * All share gradients, parameters and memory; setting a batch costs nothing. */

MODEL_API int model_batch_count(const model *m);
MODEL_API int64_t model_batch_size(const model *m, int index); /* 0: no such batch */
MODEL_API int64_t model_get_batch(const model *m);
MODEL_API int model_set_batch(model *m, int64_t samples); /* MODEL_BAD_INPUT: no plans for it */

/* --- steps
 *
 * inputs: one pointer an input, which is copied; NULL for all or for one: it is in place already.
 * outputs: one pointer an output, which is copied to; NULL for all or for one: not wanted.
 * MODEL_BAD_LABEL: a label is out of range; gradients and parameters are as before. */

/* Forward and backward; gradients are added to those accumulated since the last reset. */
MODEL_API int model_train_step(model *m, const void *const *inputs, void *const *outputs);

/* Forward of the evaluation model: the loss, and what else it gives. */
MODEL_API int model_eval_step(model *m, const void *const *inputs, void *const *outputs);

/* Forward without the loss: needs no labels. */
MODEL_API int model_infer(model *m, const void *const *inputs, void *const *outputs);

/* Update the parameters from the gradients, which are kept. */
MODEL_API int model_optimizer_step(model *m);

/* Let the next train step overwrite the gradients. */
MODEL_API void model_lazy_reset_grad(model *m);

/* Seed of the random numbers of dropout, 0 at first; each step that draws some draws others. */
MODEL_API void model_set_seed(model *m, int64_t seed);

MODEL_API float model_get_learning_rate(const model *m);
MODEL_API int model_set_learning_rate(model *m, float rate);

/* Optimizer steps done, which the formulas of AdamW use; kept in checkpoints. */
MODEL_API int64_t model_get_step(const model *m);
MODEL_API int model_set_step(model *m, int64_t step);

/* --- parameters, in the order of the training model's inputs */

MODEL_API int model_parameter_count(const model *m);
MODEL_API const model_tensor *model_parameter_info(const model *m, int index); /* NULL: none */
MODEL_API int model_find_parameter(const model *m, const char *name); /* -1: none of that name */

/* Values, which may be read and written between steps; NULL: none yet. */
MODEL_API void *model_parameter(model *m, int index);

/* Accumulated gradient; NULL: the parameter is frozen. */
MODEL_API void *model_gradient(model *m, int index);

/* All float parameters one after another: their number of elements, a copy out, a copy in.
 * `count` must be that number.  A model without values needs all: trainable_only = 0. */
MODEL_API size_t model_parameters_size(const model *m, int trainable_only);
MODEL_API int model_get_parameters(model *m, float *values, size_t count, int trainable_only);
MODEL_API int model_set_parameters(model *m, const float *values, size_t count,
                                   int trainable_only);

/* Whether the parameters have values. */
MODEL_API int model_is_loaded(const model *m);

/* --- checkpoints: format ODTC version 2, as onnxruntime-training has it
 *
 * include_optimizer_state: also moments, step and learning rate, so that training resumes. */

MODEL_API size_t model_checkpoint_size(model *m, int include_optimizer_state);
MODEL_API int model_save_to(model *m, void *buffer, size_t size, int include_optimizer_state);
#ifndef EDGEGRAD_FREESTANDING
/* Written under a temporary name, synced and renamed: a crash leaves the old file or the new. */
MODEL_API int model_save(model *m, const char *path, int include_optimizer_state);
#endif

/* User data kept with a checkpoint, by name; up to MODEL_PROPERTY_BYTES together.  Names and texts
 * are UTF-8.  A property is replaced by setting it again; `index` counts in the order of names. */
enum model_property_kind { MODEL_INT = 0, MODEL_FLOAT = 1, MODEL_STRING = 2 };
MODEL_API int model_set_property_int(model *m, const char *name, int64_t value);
MODEL_API int model_set_property_float(model *m, const char *name, float value);
MODEL_API int model_set_property_string(model *m, const char *name, const char *value);
MODEL_API int model_property_count(const model *m);

/* Name of a property, and its value in one of the three; those not wanted are NULL. */
MODEL_API int model_get_property(const model *m, int index, const char **name, int *kind,
                                 int64_t *integer, float *number, const char **text);

#ifdef __cplusplus
}
#endif
#endif
