/* Writing checkpoints: the same bytes that engine/checkpoint/encoding.py writes (runtime layout).
 *
 * FlatBuffers are written from the end to the start.  A position is therefore a number of bytes
 * from the end: the value of `used` when an object is complete.  A byte never changes once it is
 * written.  The writer keeps only the bytes in a window of the file and counts the others, so it
 * can write a checkpoint in pieces.  Without a window it finds the size.  To write the piece
 * with the checksum, it reads all values. */

#if MODEL_TRAINS

enum { VTABLES = 48, SLOTS = 8 };
enum { ROOT_BYTES = 64 }; /* the root table lies within the first bytes of a checkpoint */

struct writer {
    uint8_t *out;      /* the bytes of the window, or NULL */
    size_t begin, end; /* of the window, in the file */
    size_t size, used; /* of the file; how much of it is written */
    size_t alignment, start; /* the largest so far; `used` at the table's start */
    size_t fields[SLOTS];
    int sums; /* whether the window has the checksum, so that it is computed */
    struct crc crc;
    int count; /* distinct vtables written */
    struct {
        uint16_t entries[SLOTS + 2]; /* sizes of vtable and table, then fields */
        size_t at;
    } vtables[VTABLES];
};

/* Write bytes; NULL: zeros. */
static void put(struct writer *w, const void *bytes, size_t n)
{
    w->used += n;
    if (w->sums)
        take_before(&w->crc, bytes, n);
    if (!w->out)
        return;
    size_t first = w->size - w->used; /* where the bytes lie in the file */
    size_t begin = first > w->begin ? first : w->begin;
    size_t end = first + n < w->end ? first + n : w->end;
    if (begin < end && bytes)
        copy(w->out + (begin - w->begin), (const uint8_t *)bytes + (begin - first), end - begin);
    else if (begin < end)
        zero(w->out + (begin - w->begin), end - begin);
}

static void pad(struct writer *w, size_t n)
{
    put(w, NULL, n);
}

/* Pad so that `used` will be a multiple of n, a power of 2, once `more` bytes are written. */
static void prepare(struct writer *w, size_t n, size_t more)
{
    if (n > w->alignment)
        w->alignment = n;
    pad(w, (0 - (w->used + more)) & (n - 1));
}

static void put_le(struct writer *w, uint64_t value, size_t n)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(value >> 8 * i);
        NO_LIBRARY_CALL();
    }
    prepare(w, n, 0);
    put(w, bytes, n);
}

static void put_offset(struct writer *w, size_t to)
{
    prepare(w, 4, 0);
    put_le(w, w->used - to + 4, 4);
}

static size_t put_bytes(struct writer *w, const void *bytes, size_t n)
{
    prepare(w, 4, n);
    put(w, bytes, n);
    put_le(w, n, 4);
    return w->used;
}

static size_t put_text(struct writer *w, const char *text, size_t n)
{
    prepare(w, 4, n + 1);
    pad(w, 1);
    put(w, text, n);
    put_le(w, n, 4);
    return w->used;
}

static void begin_vector(struct writer *w, size_t item, size_t n)
{
    prepare(w, 4, item * n);
    prepare(w, n ? item : 4, item * n);
}

static size_t end_vector(struct writer *w, size_t n)
{
    put_le(w, n, 4);
    return w->used;
}

/* Write a vector of tables whose positions are in `places`. */
static size_t table_list(struct writer *w, const uint32_t *places, size_t n)
{
    begin_vector(w, 4, n);
    for (size_t i = n; i--;)
        put_offset(w, places[i]);
    return end_vector(w, n);
}

static void begin_table(struct writer *w)
{
    for (int i = 0; i < SLOTS; i++) {
        w->fields[i] = 0;
        NO_LIBRARY_CALL();
    }
    w->start = w->used;
}

static void put_reference(struct writer *w, int slot, size_t to)
{
    if (to) {
        put_offset(w, to);
        w->fields[slot] = w->used;
    }
}

static void put_scalar(struct writer *w, int slot, uint64_t value, size_t n, uint64_t absent)
{
    if (value != absent) {
        put_le(w, value, n);
        w->fields[slot] = w->used;
    }
}

static uint64_t float_bits(float value)
{
    uint32_t word;
    copy(&word, &value, sizeof word);
    return word;
}

static size_t end_table(struct writer *w)
{
    uint16_t entries[SLOTS + 2];
    size_t slots = SLOTS, known = 0;
    prepare(w, 4, 0);
    size_t table = w->used + 4;
    while (slots && !w->fields[slots - 1])
        slots--;
    size_t bytes = 4 + 2 * slots;
    entries[0] = (uint16_t)bytes;
    entries[1] = (uint16_t)(table - w->start);
    for (size_t i = 0; i < slots; i++)
        entries[2 + i] = (uint16_t)(w->fields[i] ? table - w->fields[i] : 0);
    for (int v = 0; v < w->count && !known; v++)
        if (!compare((const char *)entries, bytes, (const char *)w->vtables[v].entries,
                     w->vtables[v].entries[0]))
            known = w->vtables[v].at;
    /* The distance to a vtable that follows, or to a known one; negative ones are modulo 2^32. */
    put_le(w, known ? known - table : bytes, 4);
    if (known)
        return table;
    for (size_t i = slots + 2; i--;)
        put_le(w, entries[i], 2);
    if (w->count < VTABLES) {
        copy(w->vtables[w->count].entries, entries, bytes);
        w->vtables[w->count++].at = w->used;
    }
    return table;
}

static size_t put_values(struct writer *w, const char *name, const model_tensor *like,
                         const uint8_t *bytes)
{
    size_t label = put_text(w, name, length(name));
    size_t rank = (size_t)like->rank;
    begin_vector(w, 8, rank);
    for (size_t i = rank; i--;)
        put_le(w, (uint64_t)like->dims[i], 8);
    size_t dims = end_vector(w, rank), raw = put_bytes(w, bytes, like->bytes);
    begin_table(w);
    put_reference(w, 0, label);
    put_reference(w, 2, dims);
    put_scalar(w, 3, (uint64_t)like->dtype, 4, 0);
    put_reference(w, 4, raw);
    return end_table(w);
}

static size_t put_module(struct writer *w, model *m)
{
    for (int i = 0; i < m->d.parameter_count; i++) {
        const struct parameter *p = &m->d.parameters[m->d.sorted[i]];
        m->d.places[i] = (uint32_t)put_values(w, p->tensor.name, &p->tensor,
                                              at(m, m->d.param_at + p->offset));
    }
    size_t trainable = (size_t)m->d.trainable, all = (size_t)m->d.parameter_count;
    size_t trained = table_list(w, m->d.places, trainable);
    size_t frozen = table_list(w, m->d.places + trainable, all - trainable);
    begin_table(w);
    put_reference(w, 0, trained);
    put_reference(w, 1, frozen);
    return end_table(w);
}

static size_t put_group(struct writer *w, model *m)
{
    for (int i = 0; i < m->d.trainable; i++) {
        const struct parameter *p = &m->d.parameters[m->d.sorted[i]];
        uint32_t kept[MOST_STATES];
        for (int k = 0; k < m->d.state_count; k++) {
            char name[] = "momentum0";
            name[8] = (char)('0' + k);
            const struct state *s = &m->d.states[k];
            int64_t dims[MOST_DIMS];
            model_tensor t = state_values(s, p, dims);
            kept[k] = (uint32_t)put_values(w, name, &t, state_of(m, s, p));
        }
        size_t label = put_text(w, p->tensor.name, length(p->tensor.name));
        size_t list = table_list(w, kept, (size_t)m->d.state_count);
        begin_table(w);
        put_reference(w, 0, label);
        put_reference(w, 1, list);
        m->d.places[i] = (uint32_t)end_table(w);
    }
    size_t name = put_text(w, "group0", 6), states;
    states = table_list(w, m->d.places, (size_t)m->d.trainable);
    begin_table(w);
    put_reference(w, 0, name);
    put_scalar(w, 2, float_bits(m->initial_rate), 4, 0);
    put_scalar(w, 1, (uint64_t)m->step, 8, 0);
    put_reference(w, 3, states);
    return end_table(w);
}

static size_t put_property_table(struct writer *w, struct property *p, const char *name,
                                 const char *text)
{
    size_t label = put_text(w, name, p->name);
    size_t value = p->kind == MODEL_STRING ? put_text(w, text, p->text) : 0;
    begin_table(w);
    put_reference(w, 0, label);
    if (p->kind == MODEL_INT)
        put_scalar(w, 1, (uint64_t)p->integer, 8, 0);
    else if (p->kind == MODEL_FLOAT)
        put_scalar(w, 1, float_bits(p->number), 4, 0);
    else
        put_reference(w, 1, value);
    return end_table(w);
}

/* Write the vector of the properties of one kind. */
static size_t property_list(struct writer *w, model *m, uint32_t kind)
{
    uint32_t count = 0;
    for (size_t i = 0; i < m->property_bytes; i += property_at(m, i)->bytes)
        count += property_at(m, i)->kind == kind;
    begin_vector(w, 4, count);
    /* The last one comes first.  There are few, so each search begins at the start. */
    for (uint32_t rest = count; rest; rest--) {
        uint32_t n = 0;
        for (size_t i = 0; i < m->property_bytes; i += property_at(m, i)->bytes)
            if (property_at(m, i)->kind == kind && ++n == rest)
                put_offset(w, property_at(m, i)->table);
    }
    return end_vector(w, count);
}

/* Write the property bag.  During this, the runtime's own numbers are properties, too, unless they
 * are 0: a learning rate is always written. */
static size_t put_properties(struct writer *w, model *m, int with_own)
{
    size_t lists[3];
    for (int own = 0; with_own && own < OWN_PROPERTIES; own++) {
        struct property p;
        const float *number = own_float(m, own);
        begin_property(&p, number ? MODEL_FLOAT : MODEL_INT);
        p.name = (uint32_t)length(own_names[own]);
        if (number)
            p.number = *number;
        else
            p.integer = *own_count(m, own);
        if (own == OWN_LEARNING_RATE || p.number > 0 || p.integer)
            put_property(m, &p, own_names[own], "", 1);
    }
    if (!m->property_bytes)
        return 0;
    for (size_t i = 0; i < m->property_bytes; i += property_at(m, i)->bytes) {
        struct property *p = property_at(m, i);
        p->table = (uint32_t)put_property_table(w, p, name_of(p), name_of(p) + p->name + 1);
    }
    for (uint32_t kind = 0; kind < 3; kind++)
        lists[kind] = property_list(w, m, kind);
    begin_table(w);
    for (int slot = 0; slot < 3; slot++)
        put_reference(w, slot, lists[slot]);
    for (int own = 0; with_own && own < OWN_PROPERTIES; own++)
        drop_property(m, own_names[own], length(own_names[own]));
    return end_table(w);
}

static size_t put_checkpoint(model *m, size_t total, size_t offset, void *buffer, size_t size,
                             int include_optimizer_state);

static const struct content checkpoint_file = {"checkpoint", put_checkpoint};

/* Write the part of a checkpoint of `total` bytes that begins at `offset`, or only count the bytes
 * if there is no buffer.  Returns the checkpoint's size, or 0 if it would be too large. */
static size_t put_checkpoint(model *m, size_t total, size_t offset, void *buffer, size_t size,
                             int include_optimizer_state)
{
    struct writer w;
    w.out = buffer;
    w.begin = offset;
    w.end = offset + size;
    w.size = total;
    w.used = w.start = 0;
    w.alignment = 1;
    w.count = 0;
    w.sums = buffer && offset < ROOT_BYTES;
    begin_crc(&w.crc);
    uint32_t groups[1];
    int with_state = include_optimizer_state && has_optimizer(m);
    size_t module = m->d.parameter_count ? put_module(&w, m) : 0;
    if (with_state)
        groups[0] = (uint32_t)put_group(&w, m);
    size_t bag = put_properties(&w, m, with_state);
    size_t list = table_list(&w, groups, (size_t)with_state);
    begin_table(&w);
    put_scalar(&w, 0, 2, 4, 0);
    put_reference(&w, 1, module);
    put_reference(&w, 2, list);
    put_reference(&w, 3, bag);
    uint32_t sum = w.sums ? end_crc(&w.crc) : 0;
    w.sums = 0;
    put_scalar(&w, CHECKSUM, sum, 4, UINT64_MAX);
    size_t root = end_table(&w);
    prepare(&w, w.alignment, 8);
    put(&w, "ODTC", 4);
    put_offset(&w, root);
    return w.used > INT32_MAX ? 0 : w.used;
}

size_t model_checkpoint_size(model *m, int include_optimizer_state)
{
    return m ? measure_file(m, &checkpoint_file, include_optimizer_state) : 0;
}

int model_save_part(model *m, size_t offset, void *buffer, size_t size, int include_optimizer_state)
{
    return save_part(m, &checkpoint_file, offset, buffer, size, include_optimizer_state);
}

int model_save_to(model *m, void *buffer, size_t size, int include_optimizer_state)
{
    return save_whole(m, &checkpoint_file, buffer, size, include_optimizer_state);
}

#endif
