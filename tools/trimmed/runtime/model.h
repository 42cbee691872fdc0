/* @title@
 *
 * A `model` holds parameters, gradients, optimizer state and work memory in one block, taken at
 * creation; no function allocates after that, except @name@_save, which needs a buffer of at most
 * 64 KiB.  One model is used by one thread at a time; models are independent.
 *
 * Functions that return `int` return @NAME@_OK (0) or an error code, and @name@_message tells what
 * was wrong.  A call that fails has changed nothing, unless its comment says otherwise.
 *
 *     @name@ *m;
 *     char why[@NAME@_MESSAGE_BYTES];
 *     if (@name@_create(&m, @plan@"checkpoint", why)) { puts(why); return 1; }
 *     const void *inputs[] = {images, labels};
 *     float loss;
 *     void *outputs[] = {&loss};
 *     @name@_train_step(m, inputs, outputs);       adds to the gradients
 *     @name@_optimizer_step(m);                    changes the parameters
 *     @name@_lazy_reset_grad(m);                   the next train step starts from zero gradients
 *     @name@_save(m, "checkpoint", 1);
 *     @name@_destroy(m);
 */
#ifndef @NAME@_H
#define @NAME@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define @NAME@_API __declspec(dllexport)
#else
#define @NAME@_API __attribute__((__visibility__("default")))
#endif

/*@constants@*/

enum @name@_error {
    @NAME@_OK = 0,
    @NAME@_BAD_INPUT,      /* an argument is null, out of range or of the wrong size */
    @NAME@_BAD_LABEL,      /* a class label or an index is out of range */
    @NAME@_BAD_CHECKPOINT, /* not a checkpoint, damaged, or of another model */
    @NAME@_BAD_FILE,       /* a file is missing, unreadable or could not be written */
    @NAME@_BAD_STATE,      /* a call in the wrong order: no parameter values, no such phase */
    @NAME@_NO_MEMORY,      /* memory or threads could not be had, or the block is too small */
    @NAME@_NO_NAME,        /* no parameter or property of that name */
    @NAME@_BAD_PLAN,       /* no plan file, damaged, or not for this library */
    @NAME@_BAD_CPU         /* the CPU lacks instructions that the library was built with */
};

enum @name@_dtype {
    @NAME@_F32 = 1, @NAME@_U8 = 2, @NAME@_I8 = 3, @NAME@_U16 = 4, @NAME@_I16 = 5, @NAME@_I32 = 6,
    @NAME@_I64 = 7, @NAME@_BOOL = 9, @NAME@_F64 = 11, @NAME@_U32 = 12, @NAME@_U64 = 13
};

enum @name@_phase { @NAME@_TRAIN = 0, @NAME@_EVAL = 1, @NAME@_INFER = 2 };

typedef struct @name@ @name@;

/* A tensor: C-contiguous, native byte order. */
typedef struct @name@_tensor {
    const char *name;
    int dtype; /* enum @name@_dtype */
    int rank;
    const int64_t *dims;
    size_t bytes;
    int trainable; /* of parameters */
} @name@_tensor;

/* --- life */

/*@create@*/

/* End the threads and give the memory back; NULL is allowed. */
@NAME@_API void @name@_destroy(@name@ *m);

/* Return the last error of this model as one line; empty if there was none. */
@NAME@_API const char *@name@_message(const @name@ *m);

/* Digest of this library; the files that belong together have the same. */
@NAME@_API const char *@name@_build(void);

#if defined(EDGEGRAD_FREESTANDING) && @NAME@_THREADS > 1
/* Life of thread `tid`, from 1 to @NAME@_THREADS - 1, in a thread of the caller's: call it after
 * creation; it returns after @name@_destroy.  Without these threads no step ends. */
@NAME@_API void @name@_worker(@name@ *m, int tid);
#endif

/* --- inputs and outputs */

@NAME@_API int @name@_has_phase(const @name@ *m, int phase);
@NAME@_API int @name@_input_count(const @name@ *m, int phase);
@NAME@_API int @name@_output_count(const @name@ *m, int phase);

/* Name, type and shape of an input or output; NULL: there is none of that index. */
@NAME@_API const @name@_tensor *@name@_input_info(const @name@ *m, int phase, int index);
@NAME@_API const @name@_tensor *@name@_output_info(const @name@ *m, int phase, int index);

/* Where the steps of a phase read an input and leave an output.  Writing inputs there and passing
 * NULL to the step saves the copy.  Outputs are valid until the next step of the phase. */
@NAME@_API void *@name@_input(@name@ *m, int phase, int index);
@NAME@_API const void *@name@_output(@name@ *m, int phase, int index);

/* --- batches: a model has plans for one number of samples or several
 *
 * Steps, inputs and outputs belong to the batch that was set last; at first, to the first batch.
 * All share gradients, parameters and memory; setting a batch costs nothing. */

@NAME@_API int @name@_batch_count(const @name@ *m);
@NAME@_API int64_t @name@_batch_size(const @name@ *m, int index); /* 0: no such batch */
@NAME@_API int64_t @name@_get_batch(const @name@ *m);
@NAME@_API int @name@_set_batch(@name@ *m, int64_t samples); /* @NAME@_BAD_INPUT: no plans for it */

/* --- steps
 *
 * inputs: one pointer an input, which is copied; NULL for all or for one: it is in place already.
 * outputs: one pointer an output, which is copied to; NULL for all or for one: not wanted.
 * @NAME@_BAD_LABEL: a label is out of range; gradients, parameters and running statistics are as
 * before. */

/* Return 1 if training steps update the parameters themselves, as `edgegrad build --joined` makes
 * them: each as soon as its gradient is complete, so that no gradients are kept. */
@NAME@_API int @name@_is_joined(const @name@ *m);

/* Forward and backward; gradients are added to those accumulated since the last reset.  A joined
 * step also updates the parameters, by the learning rate and the number of the step. */
@NAME@_API int @name@_train_step(@name@ *m, const void *const *inputs, void *const *outputs);

/* Forward of the evaluation model: the loss, and what else it gives. */
@NAME@_API int @name@_eval_step(@name@ *m, const void *const *inputs, void *const *outputs);

/* Forward without the loss: needs no labels. */
@NAME@_API int @name@_infer(@name@ *m, const void *const *inputs, void *const *outputs);

/* Update the parameters from the gradients, which are kept.  @NAME@_BAD_STATE: there are none yet,
 * neither from a train step nor written by the caller; or training steps update already. */
@NAME@_API int @name@_optimizer_step(@name@ *m);

/* Let the next train step overwrite the gradients. */
@NAME@_API void @name@_lazy_reset_grad(@name@ *m);

/* Seed of the random numbers of dropout, 0 at first; each step that draws some draws others. */
@NAME@_API void @name@_set_seed(@name@ *m, int64_t seed);

/* Steps that have drawn random numbers; kept in checkpoints, so that a training resumes with the
 * numbers it would have drawn.  The seed is not kept. */
@NAME@_API int64_t @name@_get_draws(const @name@ *m);
@NAME@_API int @name@_set_draws(@name@ *m, int64_t draws); /* at least 0 */

@NAME@_API float @name@_get_learning_rate(const @name@ *m);
@NAME@_API int @name@_set_learning_rate(@name@ *m, float rate); /* finite, at least 0 */

/* Set the rate of the next optimizer step on a line from 0 at step 0 to `peak` at step `warmup`, or
 * on one from there to 0 at step `total` and after.  Call it before each step; one that resumes
 * from a checkpoint goes on where it was. */
@NAME@_API int @name@_set_linear_rate(@name@ *m, float peak, int64_t warmup, int64_t total);

/* Optimizer steps done, which the formulas of AdamW use; kept in checkpoints. */
@NAME@_API int64_t @name@_get_step(const @name@ *m);
@NAME@_API int @name@_set_step(@name@ *m, int64_t step);

/* Updates skipped, as gradients were not finite; kept in checkpoints.  Parameters, moments,
 * running statistics and the count of steps are as before the steps that made these gradients.
 * Only optimizers with the option skip_nonfinite skip any. */
@NAME@_API int64_t @name@_get_skipped(const @name@ *m);

/* --- parameters, in the order of the training model's inputs */

@NAME@_API int @name@_parameter_count(const @name@ *m);
@NAME@_API const @name@_tensor *@name@_parameter_info(const @name@ *m, int index); /* NULL: none */
@NAME@_API int @name@_find_parameter(const @name@ *m, const char *name); /* -1: none of that name */

/* Values, which may be read and written between steps; NULL: none yet. */
@NAME@_API void *@name@_parameter(@name@ *m, int index);

/* Accumulated gradient, which may be written between steps; NULL: the parameter is frozen, or steps
 * are joined. */
@NAME@_API void *@name@_gradient(@name@ *m, int index);

/* All float32 parameters one after another: their number of elements, a copy out, a copy in.
 * `count` must be that number.  A model without values needs all: trainable_only = 0. */
@NAME@_API size_t @name@_parameters_size(const @name@ *m, int trainable_only);
@NAME@_API int @name@_get_parameters(@name@ *m, float *values, size_t count, int trainable_only);
@NAME@_API int @name@_set_parameters(@name@ *m, const float *values, size_t count,
                                   int trainable_only);

/* The same of parameters in float64; no function converts between the two types. */
@NAME@_API int @name@_get_parameters_f64(@name@ *m, double *values, size_t count,
                                       int trainable_only);
@NAME@_API int @name@_set_parameters_f64(@name@ *m, const double *values, size_t count,
                                       int trainable_only);

/* Return 1 if the parameters have values. */
@NAME@_API int @name@_is_loaded(const @name@ *m);

/* --- checkpoints: format ODTC version 2, as in onnxruntime-training
 *
 * include_optimizer_state: also moments, step and learning rate, so that training resumes.
 * @NAME@_BAD_STATE: the parameters have no values.  No file has changed. */

/* Size of the buffer that @name@_save_to fills exactly; 0, with a message, on error. */
@NAME@_API size_t @name@_checkpoint_size(@name@ *m, int include_optimizer_state);
@NAME@_API int @name@_save_to(@name@ *m, void *buffer, size_t size, int include_optimizer_state);

/* The `size` bytes of the checkpoint from `offset` on, so that it is written in pieces of any size,
 * in any order; the model must be the same for all of them. */
@NAME@_API int @name@_save_part(@name@ *m, size_t offset, void *buffer, size_t size,
                              int include_optimizer_state);
#ifndef EDGEGRAD_FREESTANDING
/* Written under a temporary name, synced and renamed: a crash leaves the old file or the new. */
@NAME@_API int @name@_save(@name@ *m, const char *path, int include_optimizer_state);
#endif

/* User data kept with a checkpoint, by name; up to @NAME@_PROPERTY_BYTES together.  Names and texts
 * are UTF-8.  A property is replaced by setting it again; `index` counts in the order of names. */
enum @name@_property_kind { @NAME@_INT = 0, @NAME@_FLOAT = 1, @NAME@_STRING = 2 };
@NAME@_API int @name@_set_property_int(@name@ *m, const char *name, int64_t value);
@NAME@_API int @name@_set_property_float(@name@ *m, const char *name, float value);
@NAME@_API int @name@_set_property_string(@name@ *m, const char *name, const char *value);
@NAME@_API int @name@_property_count(const @name@ *m);

/* Name of a property, and its value in one of the three; those not wanted are NULL. */
@NAME@_API int @name@_get_property(@name@ *m, int index, const char **name, int *kind,
                                 int64_t *integer, float *number, const char **text);

#ifdef __cplusplus
}
#endif
#endif
