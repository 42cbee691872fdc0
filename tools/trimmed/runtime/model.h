/* @title@
 *
 * A `model` keeps its parameters, gradients, optimizer state and work memory in one block, which is
 * allocated when it is created.  After that, only @name@_save allocates memory, at most 64 KiB.
 *
 * Threads: models are independent of each other.  Any thread may call a model, but only one at a
 * time: the functions do not lock, and two simultaneous calls for one model are undefined
 * behaviour.  So hold a lock of your own around each call, including @name@_destroy, and while you
 * use memory that a call returned: texts are valid until the next call, and tensors until the model
 * is destroyed, unless a comment says otherwise.  When you destroy the model, clear your pointer
 * under that lock: functions refuse NULL, and destroying NULL does nothing.
 *
 * Functions that can fail return @NAME@_OK (0) or an error code; @name@_message describes the
 * error.  A failed call changes nothing, unless its comment says otherwise.  Functions that answer
 * yes or no return 1 or 0.
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

/* The reason why a call was refused. */
enum @name@_error {
    @NAME@_OK = 0,         /* the call was not refused */
    @NAME@_BAD_INPUT,      /* an argument is null, out of range or of the wrong size */
    @NAME@_BAD_LABEL,      /* a class label or an index is out of range */
    @NAME@_BAD_CHECKPOINT, /* not a checkpoint, damaged, or for another model */
    @NAME@_BAD_FILE,       /* a file is missing, unreadable or could not be written */
    @NAME@_BAD_STATE,      /* a call in the wrong order: no parameter values, no such phase */
    @NAME@_NO_MEMORY,      /* no memory or threads available, or the block is too small */
    @NAME@_NO_NAME,        /* no parameter or property has that name */
    @NAME@_BAD_PLAN,       /* not a plan file, damaged, or not for this library */
    @NAME@_BAD_CPU         /* the CPU lacks instructions that the library was built with */
};

/* The type of the elements of a tensor. */
enum @name@_dtype {
    @NAME@_F32 = 1,  /* a float of 32 bits */
    @NAME@_U8 = 2,   /* an unsigned integer of 8 bits */
    @NAME@_I8 = 3,   /* an integer of 8 bits */
    @NAME@_U16 = 4,  /* an unsigned integer of 16 bits */
    @NAME@_I16 = 5,  /* an integer of 16 bits */
    @NAME@_I32 = 6,  /* an integer of 32 bits */
    @NAME@_I64 = 7,  /* an integer of 64 bits */
    @NAME@_BOOL = 9, /* a byte, 0 or 1 */
    @NAME@_F64 = 11, /* a float of 64 bits */
    @NAME@_U32 = 12, /* an unsigned integer of 32 bits */
    @NAME@_U64 = 13  /* an unsigned integer of 64 bits */
};

/* A use of the model, with its own steps, inputs and outputs. */
enum @name@_phase {
    @NAME@_TRAIN = 0, /* training: the loss, and gradients */
    @NAME@_EVAL = 1,  /* evaluation: the loss, without gradients */
    @NAME@_INFER = 2  /* inference: outputs, without labels */
};

typedef struct @name@ @name@;

/* A tensor: C-contiguous, native byte order. */
typedef struct @name@_tensor {
    const char *name;
    int dtype; /* enum @name@_dtype */
    int rank;
    const int64_t *dims;
    size_t bytes;
    int trainable; /* for parameters only */
} @name@_tensor;

/* --- creating and destroying */

/*@create@*/

/* Stop the threads and release the memory; NULL is allowed. */
@NAME@_API void @name@_destroy(@name@ *m);

/* Return this model's last error as one line; empty if there was none. */
@NAME@_API const char *@name@_message(const @name@ *m);

/* Return the digest of this library; all files of a build contain the same one. */
@NAME@_API const char *@name@_build(void);

/* Return the name of the CPU, or of the level of CPUs, whose code this model runs: the best in the
 * library for this CPU. */
@NAME@_API const char *@name@_cpu(const @name@ *m);

#if defined(EDGEGRAD_FREESTANDING) && @NAME@_THREADS > 1
/* Run thread `tid`, from 1 to @NAME@_THREADS - 1: after creation, call this in a thread of your
 * own for each `tid`.  It returns after @name@_destroy.  Steps wait for these threads. */
@NAME@_API void @name@_worker(@name@ *m, int tid);
#endif

/* --- inputs and outputs */

/* Return whether the model has the steps of a phase. */
@NAME@_API int @name@_has_phase(const @name@ *m, int phase);

/* Return the number of inputs of a phase; 0 if the model does not have the phase. */
@NAME@_API int @name@_input_count(const @name@ *m, int phase);

/* Return the number of outputs of a phase; 0 if the model does not have the phase. */
@NAME@_API int @name@_output_count(const @name@ *m, int phase);

/* Return the name, type and shape of an input of a phase; NULL if there is none at that index. */
@NAME@_API const @name@_tensor *@name@_input_info(const @name@ *m, int phase, int index);

/* Return the name, type and shape of an output of a phase; NULL if there is none at that index. */
@NAME@_API const @name@_tensor *@name@_output_info(const @name@ *m, int phase, int index);

/* Return the values of an input that the next step of a phase reads; NULL if there is none at that
 * index.  In C, this is the memory that the step reads: to avoid a copy, write the values there and
 * pass NULL to the step. */
@NAME@_API void *@name@_input(@name@ *m, int phase, int index);

/* Return the values of an output that the last step of a phase wrote; NULL if there is none at that
 * index.  In C, this is the memory that the next step overwrites. */
@NAME@_API const void *@name@_output(@name@ *m, int phase, int index);

/* --- batches: a model has plans for one or more batch sizes
 *
 * Steps, inputs and outputs use the batch size that was set last, initially the first one.  All
 * sizes share gradients, parameters and memory, and switching between them costs nothing. */

/* Return the number of batch sizes. */
@NAME@_API int @name@_batch_count(const @name@ *m);

/* Return a batch size, in the order of the build; 0 if there is none at that index. */
@NAME@_API int64_t @name@_batch_size(const @name@ *m, int index);

/* Return the number of samples of a step. */
@NAME@_API int64_t @name@_get_batch(const @name@ *m);

/* Set the number of samples of a step.  @NAME@_BAD_INPUT: the model has no plans for it. */
@NAME@_API int @name@_set_batch(@name@ *m, int64_t samples);

/* --- steps
 *
 * inputs: for each input, a pointer to copy it from, or NULL if it is already in place; NULL for
 * all.  outputs: for each output, a pointer to copy it to, or NULL to omit it; NULL for all.
 * @NAME@_BAD_LABEL: a label is out of range.  Gradients, parameters and running statistics are
 * unchanged. */

#if @NAME@_TRAINS
/* Return whether train steps also update the parameters, as in `edgegrad build --joined`.  Each is
 * updated as soon as its gradient is complete, so no gradients are kept. */
@NAME@_API int @name@_is_joined(const @name@ *m);

/* Run forward and backward, adding to the gradients accumulated since the last reset.  A joined
 * step also updates the parameters, using the learning rate and the step number. */
@NAME@_API int @name@_train_step(@name@ *m, const void *const *inputs, void *const *outputs);
#endif

#if @NAME@_TRAINS && @NAME@_ANSWERS
/* Run the evaluation model: the loss and any other outputs. */
@NAME@_API int @name@_eval_step(@name@ *m, const void *const *inputs, void *const *outputs);
#endif

#if @NAME@_ANSWERS
/* Run the model without the loss; this needs no labels. */
@NAME@_API int @name@_infer(@name@ *m, const void *const *inputs, void *const *outputs);
#endif

#if @NAME@_DECODES
/* --- decoder: continues a text token by token, with the tokens' keys and values in caches
 *
 * The caches are in the model's memory and hold @NAME@_POSITIONS tokens.  A token adds its row to
 * them in place.  Rows do not change when the parameters change later: to recompute the whole text,
 * truncate it to 0.
 *
 *     @name@_append(m, prompt, 5);
 *     const float *scores = @name@_scores(m);      of each token that could be next
 *     @name@_append(m, &best, 1);
 */

/* Add tokens to the text.  The first ones are computed together.  @NAME@_BAD_INPUT: there are none,
 * or more than the caches hold.  @NAME@_BAD_LABEL: a token is out of range.  An error leaves the
 * text unchanged, but without scores. */
@NAME@_API int @name@_append(@name@ *m, const int32_t *tokens, size_t count);

/* Return the scores of the next token, from the last append; NULL if there are none, for example
 * after truncation.  In C, they are valid until the next call of a decoder function. */
@NAME@_API const void *@name@_scores(const @name@ *m);

/* Return the name, type and shape of the scores. */
@NAME@_API const @name@_tensor *@name@_scores_info(const @name@ *m);

/* Forget all tokens after the first `length`. */
@NAME@_API int @name@_truncate(@name@ *m, int64_t length);

/* Return the number of tokens of the text. */
@NAME@_API int64_t @name@_get_length(const @name@ *m);

/* Return the number of tokens that the caches can hold. */
@NAME@_API int64_t @name@_get_capacity(const @name@ *m);
#endif

#if @NAME@_TRAINS
/* Update the parameters from the gradients, which stay as they are.  @NAME@_BAD_STATE: neither a
 * train step nor the caller has written gradients yet, or train steps are joined. */
@NAME@_API int @name@_optimizer_step(@name@ *m);

/* Make the next train step overwrite the gradients. */
@NAME@_API void @name@_lazy_reset_grad(@name@ *m);

/* Set the seed of random numbers, used by dropout; initially 0.  Each step draws new numbers. */
@NAME@_API void @name@_set_seed(@name@ *m, int64_t seed);

/* Return the number of steps that have drawn random numbers.  Checkpoints keep it, so that resumed
 * training draws the same numbers as uninterrupted training.  They do not keep the seed. */
@NAME@_API int64_t @name@_get_draws(const @name@ *m);

/* Set the number of steps that have drawn random numbers, at least 0. */
@NAME@_API int @name@_set_draws(@name@ *m, int64_t draws);

/* Return the learning rate of the next update.  Checkpoints keep it. */
@NAME@_API float @name@_get_learning_rate(const @name@ *m);

/* Set the learning rate of updates: finite, and at least 0. */
@NAME@_API int @name@_set_learning_rate(@name@ *m, float rate);

/* Set the learning rate of the next optimizer step.  It rises linearly from 0 at step 0 to `peak`
 * at step `warmup`, then falls linearly to 0 at step `total` and stays 0.  Call this before each
 * step; after resuming from a checkpoint, it continues from the saved step.  @NAME@_BAD_INPUT: the
 * learning rate would refuse `peak`, or not 0 <= warmup <= total < 2^31. */
@NAME@_API int @name@_set_linear_rate(@name@ *m, float peak, int64_t warmup, int64_t total);

/* Return the number of optimizer steps done, which AdamW's formulas use.  Checkpoints keep it. */
@NAME@_API int64_t @name@_get_step(const @name@ *m);

/* Set the number of optimizer steps done, at least 0. */
@NAME@_API int @name@_set_step(@name@ *m, int64_t step);

/* Return the number of updates skipped because gradients were not finite.  Checkpoints keep it.  A
 * skipped update restores parameters, moments, running statistics and the step count to what they
 * were before the steps that computed these gradients.  Only models in float16, and optimizers with
 * the option skip_nonfinite, skip updates. */
@NAME@_API int64_t @name@_get_skipped(const @name@ *m);

/* Return the loss scale of the next step; 0 if the model does not scale its loss.  In float16, the
 * loss is multiplied by it in the backward pass, and gradients are divided by it again.  A skipped
 * update halves it; many successful updates in a row double it.  Checkpoints keep it. */
@NAME@_API float @name@_get_loss_scale(const @name@ *m);

/* Set the loss scale of the next step, from 1 to 2^24. */
@NAME@_API int @name@_set_loss_scale(@name@ *m, float scale);
#endif

/* --- parameters, in the order of the training model's inputs */

/* Return the number of parameters. */
@NAME@_API int @name@_parameter_count(const @name@ *m);

/* Return the name, type and shape of a parameter; NULL if there is none at that index. */
@NAME@_API const @name@_tensor *@name@_parameter_info(const @name@ *m, int index);

/* Return the index of the parameter with a name; -1 if there is none. */
@NAME@_API int @name@_find_parameter(const @name@ *m, const char *name);

/* Return the values of a parameter; NULL if there is no parameter at that index, or no values yet.
 * In C, this is the model's own memory, to read or write between steps. */
@NAME@_API void *@name@_parameter(@name@ *m, int index);

#if @NAME@_TRAINS
/* Return the accumulated gradient of a parameter; NULL if there is none at that index, it is
 * frozen, or train steps are joined.  In C, this is the model's own memory, to read or write
 * between steps. */
@NAME@_API void *@name@_gradient(@name@ *m, int index);
#endif

/* Return the number of elements of all parameters, or of only the trainable ones. */
@NAME@_API size_t @name@_parameters_size(const @name@ *m, int trainable_only);

/* Write the values of all float32 parameters, one parameter after another, to exactly as many
 * elements as @name@_parameters_size returns. */
@NAME@_API int @name@_get_parameters(@name@ *m, float *values, size_t count, int trainable_only);

/* Copy the values of all float32 parameters in, one parameter after another, from exactly as many
 * elements as @name@_parameters_size returns.  A model without values needs the frozen ones too. */
@NAME@_API int @name@_set_parameters(@name@ *m, const float *values, size_t count,
                                   int trainable_only);

/* Write the values of all float64 parameters, one parameter after another, to exactly as many
 * elements as @name@_parameters_size returns. */
@NAME@_API int @name@_get_parameters_f64(@name@ *m, double *values, size_t count,
                                       int trainable_only);

/* Copy the values of all float64 parameters in, one parameter after another, from exactly as many
 * elements as @name@_parameters_size returns.  A model without values needs the frozen ones too. */
@NAME@_API int @name@_set_parameters_f64(@name@ *m, const double *values, size_t count,
                                       int trainable_only);

/* Return whether the parameters have values. */
@NAME@_API int @name@_is_loaded(const @name@ *m);

#if @NAME@_TRAINS
/* --- checkpoints: format ODTC version 2, as in onnxruntime-training
 *
 * include_optimizer_state: also save moments, step and learning rate, so that training can resume.
 * @NAME@_BAD_STATE: the parameters have no values.  No file has changed. */

/* Return the size of a checkpoint in bytes; on error 0, with a message. */
@NAME@_API size_t @name@_checkpoint_size(@name@ *m, int include_optimizer_state);

/* Write a checkpoint to a buffer of exactly @name@_checkpoint_size bytes. */
@NAME@_API int @name@_save_to(@name@ *m, void *buffer, size_t size, int include_optimizer_state);

/* Write the bytes of the checkpoint that begin at `offset`, as many as the buffer has.  Pieces may
 * have any size and come in any order, but the model must not change between them. */
@NAME@_API int @name@_save_part(@name@ *m, size_t offset, void *buffer, size_t size,
                              int include_optimizer_state);
#ifndef EDGEGRAD_FREESTANDING
/* Write a checkpoint file under a temporary name, sync it, and rename it: a crash leaves the old
 * file or the new one. */
@NAME@_API int @name@_save(@name@ *m, const char *path, int include_optimizer_state);
#endif
#endif

/* --- properties: named user data in a checkpoint, up to @NAME@_PROPERTY_BYTES in total
 *
 * Names and texts are UTF-8.  `index` counts in the order of names. */

/* The type of a property's value. */
enum @name@_property_kind {
    @NAME@_INT = 0,   /* a whole number of 64 bits */
    @NAME@_FLOAT = 1, /* a float of 32 bits */
    @NAME@_STRING = 2 /* a text */
};

#if @NAME@_TRAINS
/* Set a property to a whole number, whatever it was. */
@NAME@_API int @name@_set_property_int(@name@ *m, const char *name, int64_t value);

/* Set a property to a number, whatever it was. */
@NAME@_API int @name@_set_property_float(@name@ *m, const char *name, float value);

/* Set a property to a text, whatever it was. */
@NAME@_API int @name@_set_property_string(@name@ *m, const char *name, const char *value);
#endif

/* Return the number of properties. */
@NAME@_API int @name@_property_count(const @name@ *m);

/* Get the name and kind of a property, and its value as `integer`, `number` or `text`.  In C, any
 * address may be NULL. */
@NAME@_API int @name@_get_property(@name@ *m, int index, const char **name, int *kind,
                                 int64_t *integer, float *number, const char **text);

/*@export@*/

#if @NAME@_FEDERATED
/* --- federations: messages are safetensors files, described in docs/small-clients.md
 *
 * For each request, make a model from the checkpoint.  Take the request, run the steps of the phase
 * that it asks for over all samples, `epochs` times, and write the answer. */

/* Put the parameters of a request into the model, and set the batch size, learning rate and
 * proximal term that it asks for.  If keeps_state is 1, save a checkpoint with the optimizer's
 * state after the last step.  @NAME@_BAD_INPUT: it is not a request; do not answer.
 * @NAME@_BAD_STATE: this model cannot carry it out; answer with the message as the reason. */
@NAME@_API int @name@_take_request(@name@ *m, const void *request, size_t size, int *phase,
                                 int *epochs, int *keeps_state);

/* Return the size of an answer in bytes; on error 0, with a message.
 * samples: the number of samples in an epoch.  loss: the mean loss of the last epoch.
 * reason: why the request could not be carried out; empty if it was. */
@NAME@_API size_t @name@_answer_size(@name@ *m, const void *request, size_t size, int64_t samples,
                                   float loss, const char *reason);

/* Write the answer to a request to a buffer of exactly @name@_answer_size bytes.  The answer to a
 * training run contains the parameters. */
@NAME@_API int @name@_write_answer(@name@ *m, const void *request, size_t size, int64_t samples,
                                 float loss, const char *reason, void *answer, size_t answer_size);
#endif

#ifdef __cplusplus
}
#endif
#endif
