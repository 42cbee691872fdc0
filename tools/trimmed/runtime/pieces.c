/* Files of a model, which are written whole or in pieces. */

#if MODEL_TRAINS || defined(GRAPH_BYTES)

/* Content of a file: its name in messages, and the function that writes `size` bytes of a file of
 * `total` bytes from `offset` on.  Without a buffer that counts the bytes of the whole file; it
 * returns 0 if they are too many.  `option` is as in the function that was called. */
struct content {
    const char *name;
    size_t (*put)(model *m, size_t total, size_t offset, void *buffer, size_t size, int option);
};

/* Return the size of a file; on error 0, with a message. */
static size_t measure_file(model *m, const struct content *c, int option)
{
    if (need_values(m))
        return 0;
    size_t size = c->put(m, 0, 0, NULL, 0, option);
    if (!size)
        fail(m, MODEL_BAD_INPUT, "a %s holds at most 2 GiB", c->name);
    return size;
}

/* Check the arguments of the functions below.  On success *total is the file's size. */
static int begin_saving(model *m, const struct content *c, const void *buffer, int option,
                        size_t *total)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (need_values(m))
        return MODEL_BAD_STATE;
    *total = measure_file(m, c, option);
    if (!*total)
        return MODEL_BAD_INPUT;
    if (!buffer)
        return fail(m, MODEL_BAD_INPUT, "the buffer for a %s of %d bytes is NULL", c->name,
                    (int64_t)*total);
    return MODEL_OK;
}

static int save_part(model *m, const struct content *c, size_t offset, void *buffer, size_t size,
                     int option)
{
    size_t total = 0;
    int code = begin_saving(m, c, buffer, option, &total);
    if (code)
        return code;
    if (offset > total || size > total - offset)
        return fail(m, MODEL_BAD_INPUT, "%d bytes from byte %d on: the %s has %d", (int64_t)size,
                    (int64_t)offset, c->name, (int64_t)total);
    c->put(m, total, offset, buffer, size, option);
    return MODEL_OK;
}

static int save_whole(model *m, const struct content *c, void *buffer, size_t size, int option)
{
    size_t total = 0;
    int code = begin_saving(m, c, buffer, option, &total);
    if (code)
        return code;
    if (size != total)
        return fail(m, MODEL_BAD_INPUT, "the %s has %d bytes, the buffer %d", c->name,
                    (int64_t)total, (int64_t)size);
    c->put(m, total, 0, buffer, size, option);
    return MODEL_OK;
}

#endif
