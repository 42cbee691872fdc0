/* The inference model as an ONNX file: the graph is constant data of the build, and has holes that
 * the values of the parameters fill. */

#ifdef GRAPH_BYTES

/* Runs of values of one parameter, or of two in turn, where the file has both as one tensor. */
struct hole {
    uint32_t at;   /* where the runs belong in the graph */
    uint32_t rows; /* how often a run of each comes */
    struct {
        uint32_t parameter, bytes; /* bytes 0: there is no such parameter */
    } runs[2];
};

static const struct hole holes[] = {HOLES};

/* The part of a file that is wanted, and how much of the file has gone by. */
struct view {
    uint8_t *out;
    size_t begin, end, done;
};

static void pass(struct view *v, const uint8_t *bytes, size_t n)
{
    size_t begin = v->done > v->begin ? v->done : v->begin;
    size_t end = v->done + n < v->end ? v->done + n : v->end;
    if (v->out && begin < end)
        copy(v->out + (begin - v->begin), bytes + (begin - v->done), end - begin);
    v->done += n;
}

/* Write the part of the model that begins at `offset`; without a buffer only count.  Returns the
 * size of all. */
static size_t put_graph(model *m, size_t total, size_t offset, void *buffer, size_t size,
                        int unused)
{
    struct view v = {buffer, offset, offset + size, 0};
    size_t done = 0;
    (void)total;
    (void)unused;
    for (size_t i = 0; i < sizeof holes / sizeof *holes; i++) {
        const struct hole *h = &holes[i];
        pass(&v, own_graph + done, h->at - done);
        done = h->at;
        for (uint32_t row = 0; row < h->rows; row++)
            for (int k = 0; k < 2 && h->runs[k].bytes; k++) {
                const struct parameter *p = &m->d.parameters[h->runs[k].parameter];
                size_t bytes = h->runs[k].bytes;
                pass(&v, at(m, m->d.param_at + p->offset + row * bytes), bytes);
            }
    }
    pass(&v, own_graph + done, GRAPH_BYTES - done);
    return v.done;
}

static const struct content graph_file = {"model", put_graph};

size_t model_export_model_size(model *m)
{
    return m ? measure_file(m, &graph_file, 0) : 0;
}

int model_export_model_part(model *m, size_t offset, void *buffer, size_t size)
{
    return save_part(m, &graph_file, offset, buffer, size, 0);
}

int model_export_model_to(model *m, void *buffer, size_t size)
{
    return save_whole(m, &graph_file, buffer, size, 0);
}

#endif
