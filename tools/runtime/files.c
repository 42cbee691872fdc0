/* Models from the heap, checkpoints in files. */

#ifndef EDGEGRAD_FREESTANDING

#ifdef _WIN32
#define sync_file(file) _commit(_fileno(file))
#else
#define sync_file(file) fsync(fileno(file))
#endif

int model_create_from(model **out, const void *checkpoint, size_t bytes, char *message)
{
    size_t size = MODEL_MEMORY_BYTES + 64;
    void *block = calloc(1, size); /* pages nobody touches cost nothing */
    if (!out) {
        free(block);
        return MODEL_BAD_INPUT;
    }
    void *memory = block ? (void *)(((uintptr_t)block + 63) / 64 * 64) : NULL;
    int code = model_create_in(out, memory, size - 64, checkpoint, bytes, message);
    if (code)
        free(block);
    else
        (*out)->allocation = block;
    return code;
}

static void say(char *message, const char *format, ...)
{
    va_list values_;
    va_start(values_, format);
    if (message)
        write_line(message, MODEL_MESSAGE_BYTES, format, values_);
    va_end(values_);
}

/* A path with something after it; 0 if it is too long. */
static int join(char *out, size_t size, const char *path, const char *end)
{
    struct text t = {out, size, 0};
    for (const char *c = path; *c; c++)
        put_char(&t, *c);
    for (const char *c = end; *c; c++)
        put_char(&t, *c);
    out[t.used] = 0;
    return t.used == strlen(path) + strlen(end);
}

enum { PATH_BYTES = 4096 };

/* Whether a write of values to a second file was cut short there, which only the engine mends. */
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
    if (stat(path, &info) || (info.st_mode & S_IFMT) != S_IFREG) {
        say(message, "cannot read checkpoint '%s': missing, or no regular file", path);
        return MODEL_BAD_FILE;
    }
    if (is_unfinished(path)) {
        say(message, "checkpoint '%s' was not completely written; load it with the engine", path);
        return MODEL_BAD_FILE;
    }
    if (info.st_size > INT32_MAX) {
        say(message, "checkpoint '%s' has more than 2 GiB", path);
        return MODEL_BAD_CHECKPOINT;
    }
    size_t size = (size_t)info.st_size;
    FILE *file = fopen(path, "rb");
    *data = file ? malloc(size + 1) : NULL;
    *bytes = *data ? fread(*data, 1, size, file) : 0;
    if (file)
        fclose(file);
    if (*data && *bytes == size)
        return MODEL_OK;
    int code = file && !*data ? MODEL_NO_MEMORY : MODEL_BAD_FILE;
    free(*data);
    say(message, "cannot read checkpoint '%s'", path);
    return code;
}

int model_create(model **out, const char *path, char *message)
{
    uint8_t *data;
    size_t bytes;
    if (!out)
        return MODEL_BAD_INPUT;
    *out = NULL;
    if (!path)
        return model_create_from(out, NULL, 0, message);
    int code = read_all(path, &data, &bytes, message);
    if (code)
        return code;
    code = model_create_from(out, data, bytes, message);
    free(data);
    return code;
}

#ifdef _WIN32
static int replace_file(const char *from, const char *to)
{
    return !MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}
#else
/* Rename, with the permissions of the file that goes, and durably. */
static int replace_file(const char *from, const char *to)
{
    char folder[PATH_BYTES];
    struct stat info;
    size_t end = strlen(to);
    if (!stat(to, &info) && chmod(from, info.st_mode & 07777)) {
        /* a file system without modes: the content counts */
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

static int write_file(model *m, const char *path, const uint8_t *data, size_t size)
{
    static unsigned counter;
    char temporary[PATH_BYTES], end[64];
    struct text t = {end, sizeof end, 0};
    put_char(&t, '.');
    put_number(&t, (int64_t)getpid());
    put_char(&t, '-');
    put_number(&t, (int64_t)__atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED));
    put_string(&t, ".tmp", 4);
    end[t.used] = 0;
    if (!join(temporary, sizeof temporary, path, end))
        return fail(m, MODEL_BAD_FILE, "cannot write checkpoint: the path is too long");
    FILE *file = fopen(temporary, "wb");
    if (!file)
        return fail(m, MODEL_BAD_FILE, "cannot write checkpoint '%s'", path);
    int good = fwrite(data, 1, size, file) == size && !fflush(file) && !sync_file(file);
    good &= !fclose(file);
    if (good && !replace_file(temporary, path))
        return MODEL_OK;
    remove(temporary);
    return fail(m, MODEL_BAD_FILE, "cannot write checkpoint '%s'", path);
}

int model_save(model *m, const char *path, int include_optimizer_state)
{
    if (!m || !path)
        return m ? fail(m, MODEL_BAD_INPUT, "the path is NULL") : MODEL_BAD_INPUT;
    if (is_unfinished(path))
        return fail(m, MODEL_BAD_FILE, "checkpoint '%s' was not completely written; load and save "
                    "it with the engine", path);
    struct stat info;
    if (!stat(path, &info) && (info.st_mode & S_IFMT) != S_IFREG)
        return fail(m, MODEL_BAD_FILE, "'%s' is not a regular file", path);
    size_t size = model_checkpoint_size(m, include_optimizer_state);
    uint8_t *data = size ? malloc(size) : NULL;
    if (size && !data)
        return fail(m, MODEL_NO_MEMORY, "no memory for a checkpoint of %d bytes", (int64_t)size);
    int code = model_save_to(m, data, size, include_optimizer_state);
    if (!code) {
#ifdef _WIN32
        code = write_file(m, path, data, size);
#else
        char *real = realpath(path, NULL); /* a symbolic link stays, its target is replaced */
        code = write_file(m, real ? real : path, data, size);
        free(real);
#endif
    }
    free(data);
    return code;
}

#elif MODEL_THREADS > 1

void model_worker(model *m, int tid)
{
    model_kernels[LAUNCH + 1](m->words, tid, MODEL_THREADS);
}

#endif
