/* Models on the heap, and plans and checkpoints in files. */

#ifndef EDGEGRAD_FREESTANDING

#ifdef _WIN32
#define sync_file(file) _commit(_fileno(file))
#else
#define sync_file(file) fsync(fileno(file))
#endif

/* Return what the address of a block of memory is a multiple of. */
static size_t alignment_of(size_t size)
{
#ifdef MADV_HUGEPAGE
    return size < HUGE_BYTES ? 64 : HUGE_PAGE;
#else
    (void)size;
    return 64;
#endif
}

/* Return where the `size` bytes begin in a block that `take` made for them. */
static void *aligned(void *block, size_t size)
{
    uintptr_t to = alignment_of(size);
    return (void *)(((uintptr_t)block + to - 1) / to * to);
}

/* Allocate a block with room for alignment; return NULL, with a message, if that fails.
 *
 * A large block requests huge pages where the system has them: a step walks over all of its memory,
 * and with small pages MobileNetV2 took a tenth longer.  It begins at a huge page, or chance would
 * decide how much of it is in huge pages.  After the last whole one there are small pages, so that
 * it takes no more memory than it has bytes. */
static void *take(size_t size, char *message)
{
    size_t room = alignment_of(size);
    void *block = size <= SIZE_MAX - room ? malloc(size + room) : NULL;
    if (!block)
        report(message, "the system has no memory of %d bytes", (int64_t)size);
#ifdef MADV_HUGEPAGE
    size_t whole = size / HUGE_PAGE * HUGE_PAGE;
    if (block && room == HUGE_PAGE && madvise(aligned(block, size), whole, MADV_HUGEPAGE)) {
        /* this system has only small pages */
    }
#endif
    return block;
}

/* Write a path and its ending to `out`; return 0 if they are too long. */
static int join(char *out, size_t size, const char *path, const char *end)
{
    struct text t = {out, size, 0};
    for (const char *c = path; *c; c++)
        put_char(&t, *c);
    for (const char *c = end; *c; c++)
        put_char(&t, *c);
    out[t.used] = 0;
    return t.used == length(path) + length(end);
}

enum { PATH_BYTES = 4096 };

/* Return 1 if the engine was stopped here while it wrote a checkpoint as two files.  Only the
 * engine can repair that. */
static int is_unfinished(const char *path)
{
    char name[PATH_BYTES];
    FILE *file = join(name, sizeof name, path, ".odtc-new") ? fopen(name, "rb") : NULL;
    if (file)
        fclose(file);
    return file != NULL;
}

static int read_all(const char *path, uint8_t **data, size_t *bytes, char *message)
{
    struct stat info;
    *data = NULL;
    *bytes = 0;
    if (!path)
        return MODEL_OK;
    if (stat(path, &info) || (info.st_mode & S_IFMT) != S_IFREG) {
        report(message, "cannot read '%s': missing, or no regular file", path);
        return MODEL_BAD_FILE;
    }
    if (is_unfinished(path)) {
        report(message, "checkpoint '%s' was not completely written; load it with the engine",
               path);
        return MODEL_BAD_FILE;
    }
    if (info.st_size > INT32_MAX) {
        report(message, "'%s' has more than 2 GiB", path);
        return MODEL_BAD_CHECKPOINT;
    }
    size_t size = (size_t)info.st_size;
    FILE *file = fopen(path, "rb");
    const char *why = file ? "it became shorter" : strerror(errno);
    *data = file ? malloc(size + 1) : NULL;
    *bytes = *data ? fread(*data, 1, size, file) : 0;
    if (file)
        fclose(file);
    if (*data && *bytes == size)
        return MODEL_OK;
    int code = file && !*data ? MODEL_NO_MEMORY : MODEL_BAD_FILE;
    free(*data);
    *data = NULL;
    if (code == MODEL_NO_MEMORY)
        report(message, "no memory for the %d bytes of '%s'", (int64_t)size, path);
    else
        report(message, "cannot read '%s': %s", path, why);
    return code;
}

/* Put the path of a checkpoint before the message about its content. */
static void put_path(char *message, const char *path)
{
    char why[MODEL_MESSAGE_BYTES];
    struct text t = {message, sizeof why, 0};
    if (!message)
        return;
    copy(why, message, sizeof why);
    put_string(&t, path, sizeof why / 2);
    put_string(&t, ": ", 2);
    put_string(&t, why, sizeof why);
    t.out[t.used] = 0;
}

#ifdef OWN_PLANS
int model_create_from(model **out, const void *checkpoint, size_t bytes, char *message)
{
    int level, code = begin(out, &level, checkpoint, bytes, message);
    if (code)
        return code;
    size_t needed = level_at(level)->memory;
    void *block = take(needed, message);
    if (!block)
        return MODEL_NO_MEMORY;
    code = model_create_in(out, aligned(block, needed), needed, checkpoint, bytes, message);
    if (code)
        free(block);
    else
        (*out)->allocation = block;
    return code;
}

int model_create(model **out, const char *path, char *message)
{
    uint8_t *data = NULL;
    size_t bytes;
    int level, code = begin(out, &level, NULL, 0, message);
    if (!code)
        code = read_all(path, &data, &bytes, message);
    if (!code)
        code = model_create_from(out, data, bytes, message);
    if (data && code == MODEL_BAD_CHECKPOINT)
        put_path(message, path);
    free(data);
    return code;
}
#else
int model_create_from_plan(model **out, const void *plan, size_t plan_bytes, const void *checkpoint,
                           size_t bytes, char *message)
{
    size_t size = 0;
    int level, code = begin(out, &level, checkpoint, bytes, message);
    if (!code)
        code = model_plan_memory(plan, plan_bytes, &size, message);
    if (code)
        return code;
    void *block = take(size, message);
    if (!block)
        return MODEL_NO_MEMORY;
    code = model_create_in(out, aligned(block, size), size, plan, plan_bytes, checkpoint, bytes,
                           message);
    if (code)
        free(block);
    else
        (*out)->allocation = block;
    return code;
}

int model_create(model **out, const char *plan, const char *path, char *message)
{
    uint8_t *plan_data = NULL, *data = NULL;
    size_t plan_bytes, bytes;
    int level, code = begin(out, &level, NULL, 0, message);
    if (!code && !plan) {
        report(message, "plan is NULL: it must be the path of a plan file");
        code = MODEL_BAD_INPUT;
    }
    if (!code)
        code = read_all(plan, &plan_data, &plan_bytes, message);
    if (!code)
        code = read_all(path, &data, &bytes, message);
    if (!code)
        code = model_create_from_plan(out, plan_data, plan_bytes, data, bytes, message);
    if (data && code == MODEL_BAD_CHECKPOINT)
        put_path(message, path);
    free(plan_data);
    free(data);
    return code;
}
#endif

#if MODEL_TRAINS || defined(GRAPH_BYTES)
#ifdef _WIN32
static int replace_file(const char *from, const char *to)
{
    return !MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}
#else
/* Replace a file with another, keep its permissions, and wait until the disk has it. */
static int replace_file(const char *from, const char *to)
{
    char folder[PATH_BYTES];
    struct stat info;
    size_t end = length(to);
    if (!stat(to, &info) && chmod(from, info.st_mode & 07777)) {
        /* some file systems have no permissions; the content matters more */
    }
    if (rename(from, to))
        return 1;
    while (end && to[end - 1] != '/')
        end--;
    join(folder, sizeof folder, end ? to : ".", "");
    if (end)
        folder[end] = 0;
    int directory = open(folder, O_RDONLY);
    int bad = directory < 0 || fsync(directory);
    if (directory >= 0)
        close(directory);
    return bad;
}
#endif

enum { PIECE_BYTES = 1 << 16 };

/* Write the `size` bytes of a file of the model, in pieces; return an error code, or -1 with errno
 * if a write fails. */
static int write_pieces(model *m, const struct content *c, FILE *file, size_t size, int option)
{
    size_t most = size < PIECE_BYTES ? size : PIECE_BYTES;
    uint8_t *piece = malloc(most);
    int code = MODEL_OK;
    if (!piece)
        return fail(m, MODEL_NO_MEMORY, "no memory to write the %s in pieces of %d bytes", c->name,
                    (int64_t)most);
    for (size_t done = 0; !code && done < size; done += most) {
        size_t n = size - done < most ? size - done : most;
        c->put(m, size, done, piece, n, option);
        code = fwrite(piece, 1, n, file) == n ? MODEL_OK : -1;
    }
    int why = errno;
    free(piece);
    errno = why;
    return code;
}

/* Write a file under a temporary name, which no other process or model of this one has, and rename
 * it. */
static int write_file(model *m, const struct content *c, const char *path, size_t size, int option)
{
    char temporary[PATH_BYTES], end[64];
    struct text t = {end, sizeof end, 0};
    put_char(&t, '.');
    put_number(&t, (int64_t)getpid());
    put_char(&t, '-');
    put_number(&t, (int64_t)(intptr_t)m);
    put_string(&t, ".tmp", 4);
    end[t.used] = 0;
    if (!join(temporary, sizeof temporary, path, end))
        return fail(m, MODEL_BAD_FILE, "cannot write %s: the path is too long", c->name);
    FILE *file = fopen(temporary, "wb");
    int code = file ? write_pieces(m, c, file, size, option) : -1;
    int good = !code && !fflush(file) && !sync_file(file);
    int why = errno; /* closing the file may change errno */
    if (file && fclose(file) && good) {
        good = 0;
        why = errno;
    }
    if (good && !replace_file(temporary, path))
        return MODEL_OK;
    why = good ? errno : why;
    if (file)
        remove(temporary);
    if (code > 0)
        return code;
    return fail(m, MODEL_BAD_FILE, "cannot write %s '%s': %s", c->name, path, strerror(why));
}

static int save_file(model *m, const struct content *c, const char *path, int option)
{
    if (!m || !path)
        return m ? fail(m, MODEL_BAD_INPUT, "the path is NULL") : MODEL_BAD_INPUT;
    if (need_values(m))
        return MODEL_BAD_STATE;
    if (is_unfinished(path))
        return fail(m, MODEL_BAD_FILE, "checkpoint '%s' was not completely written; load it with "
                    "the engine", path);
    struct stat info;
    if (!stat(path, &info) && (info.st_mode & S_IFMT) != S_IFREG)
        return fail(m, MODEL_BAD_FILE, "'%s' is not a regular file", path);
    size_t size = measure_file(m, c, option);
    if (!size)
        return MODEL_BAD_INPUT;
#ifdef _WIN32
    return write_file(m, c, path, size, option);
#else
    char *real = realpath(path, NULL); /* keep a symbolic link, replace its target */
    int code = write_file(m, c, real ? real : path, size, option);
    free(real);
    return code;
#endif
}
#endif

#if MODEL_TRAINS
int model_save(model *m, const char *path, int include_optimizer_state)
{
    return save_file(m, &checkpoint_file, path, include_optimizer_state);
}
#endif

#ifdef GRAPH_BYTES
int model_export_model(model *m, const char *path)
{
    return save_file(m, &graph_file, path, 0);
}
#endif

#elif MODEL_THREADS > 1

void model_worker(model *m, int tid)
{
    if (m && tid > 0 && tid < MODEL_THREADS) {
        const struct level *level = level_of(m);
        kernel_at(level->kernels, level->runner + 1)(m->words, tid, MODEL_THREADS);
    }
}

#endif
