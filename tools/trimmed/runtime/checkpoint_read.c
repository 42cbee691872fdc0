/* Reading checkpoints: FlatBuffers, identifier "ODTC", version 2 (engine/checkpoint/contents.py).
 *
 * Every access is checked against the size of the file.  Offsets only point forward, so no walk can
 * loop.  Objects may overlap, so a small file could take long to read; `budget` is the number of
 * bytes that may still be visited, as in engine/checkpoint/flatbuffer.py. */

struct reader {
    model *m;
    const uint8_t *data;
    size_t size, budget;
    int code;
};

struct table {
    size_t pos, size, vtable, vtable_size; /* pos 0: absent */
};

struct bytes {
    size_t pos, count;
    int found;
};

static int damaged(struct reader *r, const char *what, const char *problem)
{
    if (!r->code)
        r->code = fail(r->m, MODEL_BAD_CHECKPOINT, "checkpoint: %s: %s", what, problem);
    return 0;
}

/* Return the little-endian number of n bytes at pos, which must be a multiple of n. */
static uint64_t load(struct reader *r, size_t pos, size_t n, const char *what)
{
    uint64_t value = 0;
    if (r->code)
        return 0;
    if (pos > r->size || n > r->size - pos || pos % n) {
        damaged(r, what, "truncated, or a misaligned number");
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)r->data[pos + i] << 8 * i;
    return value;
}

static int claim(struct reader *r, size_t pos, uint64_t n, const char *what)
{
    if (r->code)
        return 0;
    if (pos > r->size || n > r->size - pos)
        return damaged(r, what, "truncated");
    if (n > r->budget)
        return damaged(r, what, "objects overlap");
    r->budget -= (size_t)n;
    return 1;
}

static size_t follow(struct reader *r, size_t pos, const char *what)
{
    uint64_t offset = load(r, pos, 4, what);
    if (!r->code && (offset == 0 || offset >= r->size - pos))
        damaged(r, what, "an offset leads outside");
    return r->code ? 0 : pos + (size_t)offset;
}

static struct table table_at(struct reader *r, size_t pos, const char *what)
{
    struct table none = {0, 0, 0, 0}, t = {pos, 0, 0, 0};
    int64_t back = (int32_t)load(r, pos, 4, what);
    if (r->code)
        return none;
    int64_t vtable = (int64_t)pos - back;
    if (vtable < 0 || vtable > (int64_t)r->size) {
        damaged(r, what, "a corrupt vtable");
        return none;
    }
    t.vtable = (size_t)vtable;
    t.vtable_size = (size_t)load(r, t.vtable, 2, what);
    t.size = (size_t)load(r, t.vtable + 2, 2, what);
    if (!r->code && (t.vtable_size < 4 || t.vtable_size % 2 || t.vtable_size > r->size - t.vtable
                     || t.size < 4))
        damaged(r, what, "a corrupt vtable");
    return claim(r, pos, t.size, what) ? t : none;
}

/* Return the position of the field in a slot of a table; 0 if the field is absent. */
static size_t field(struct reader *r, const struct table *t, size_t slot, size_t n,
                    const char *what)
{
    size_t entry = 4 + 2 * slot;
    if (!t->pos || entry + 2 > t->vtable_size)
        return 0;
    size_t offset = (size_t)load(r, t->vtable + entry, 2, what);
    if (r->code || !offset)
        return 0;
    if (offset < 4 || offset + n > t->size) {
        damaged(r, what, "a field outside its table");
        return 0;
    }
    return t->pos + offset;
}

static uint64_t scalar(struct reader *r, const struct table *t, size_t slot, size_t n,
                       uint64_t absent, const char *what)
{
    size_t pos = field(r, t, slot, n, what);
    return pos ? load(r, pos, n, what) : absent;
}

static float as_float(uint64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float value;
    copy(&value, &word, sizeof value);
    return value;
}

static struct bytes vector(struct reader *r, const struct table *t, size_t slot, uint64_t item,
                           uint64_t tail, const char *what)
{
    struct bytes none = {0, 0, 0};
    size_t pos = field(r, t, slot, 4, what);
    if (!pos || !(pos = follow(r, pos, what)))
        return none;
    uint64_t count = load(r, pos, 4, what);
    if (!claim(r, pos, 4 + count * item + tail, what))
        return none;
    struct bytes found = {pos + 4, (size_t)count, 1};
    return found;
}

static struct bytes string(struct reader *r, const struct table *t, size_t slot, const char *what)
{
    struct bytes s = vector(r, t, slot, 1, 1, what);
    if (r->code)
        return s;
    if (!s.found)
        damaged(r, what, "text is missing");
    else if (r->data[s.pos + s.count])
        damaged(r, what, "text does not end in a zero byte");
    else if (!is_utf8(r->data + s.pos, s.count))
        damaged(r, what, "text is not UTF-8");
    return s;
}

static struct table child(struct reader *r, const struct table *t, size_t slot, const char *what)
{
    struct table none = {0, 0, 0, 0};
    size_t pos = field(r, t, slot, 4, what);
    return pos && (pos = follow(r, pos, what)) ? table_at(r, pos, what) : none;
}

static struct table element(struct reader *r, const struct bytes *v, size_t i, const char *what)
{
    struct table none = {0, 0, 0, 0};
    size_t pos = follow(r, v->pos + 4 * i, what);
    return pos ? table_at(r, pos, what) : none;
}

/* Mark the parameter of this name in `seen` and return its index.  If there is no such parameter,
 * or it has the mark already, set an error and return -1. */
static int find(struct reader *r, const struct bytes *name, uint8_t mark, const char *what)
{
    if (r->code)
        return -1;
    const char *text = (const char *)r->data + name->pos;
    for (int i = 0; i < r->m->d.parameter_count; i++) {
        const char *mine = r->m->d.parameters[i].tensor.name;
        if (compare(text, name->count, mine, length(mine)))
            continue;
        if (r->m->d.seen[i] & mark)
            return damaged(r, mine, "is a duplicate name") - 1;
        r->m->d.seen[i] |= mark;
        return i;
    }
    r->code =
        fail(r->m, MODEL_BAD_CHECKPOINT, "checkpoint: %s '%s' is not in this model", what, text);
    return -1;
}

/* Copy the values of a Tensor table to `to`, if that is not NULL.  The table must have the type and
 * shape of `like`. */
static void values(struct reader *r, const struct table *t, const model_tensor *like, uint8_t *to)
{
    const char *name = like->name;
    struct bytes dims = vector(r, t, 2, 8, 0, name), raw = vector(r, t, 4, 1, 0, name);
    uint64_t dtype = scalar(r, t, 3, 4, 0, name), outside = scalar(r, t, 6, 8, UINT64_MAX, name);
    if (r->code)
        return;
    int same = dims.found && dims.count == (size_t)like->rank && dtype == (uint64_t)like->dtype;
    for (int i = 0; same && i < like->rank; i++)
        same = load(r, dims.pos + 8 * (size_t)i, 8, name) == (uint64_t)like->dims[i];
    if (r->code)
        return;
    if (!same)
        damaged(r, name, "another shape, or another element type than in this model");
    else if (!raw.found || outside != UINT64_MAX)
        damaged(r, name, "values outside the file are not supported");
    else if (raw.count != like->bytes)
        damaged(r, name, "another number of bytes than its shape needs");
    for (size_t i = 0; !r->code && like->dtype == MODEL_BOOL && i < raw.count; i++)
        if (r->data[raw.pos + i] > 1)
            damaged(r, name, "BOOL data has bytes other than 0 and 1");
    if (!r->code && to)
        copy(to, r->data + raw.pos, raw.count);
}

static void read_parameters(struct reader *r, const struct table *module, size_t slot,
                            int trainable, int nominal)
{
    struct bytes list = vector(r, module, slot, 4, 0, "parameters");
    if (!r->code && !list.found)
        damaged(r, "parameters", "a list is missing");
    for (size_t i = 0; !r->code && i < list.count; i++) {
        struct table t = element(r, &list, i, "parameters");
        struct bytes name = string(r, &t, 0, "a parameter's name");
        int index = find(r, &name, 1, "parameter");
        if (index < 0)
            return;
        const struct parameter *p = &r->m->d.parameters[index];
        if (p->tensor.trainable != trainable)
            damaged(r, p->tensor.name, trainable ? "is frozen in this model"
                                                 : "is trained in this model");
        else if (!nominal)
            values(r, &t, &p->tensor, at(r->m, r->m->d.param_at + p->offset));
        else if (scalar(r, &t, 3, 4, 0, p->tensor.name) != (uint64_t)p->tensor.dtype)
            damaged(r, p->tensor.name, "another element type than in this model");
    }
}

static void read_states(struct reader *r, const struct table *entry, int index)
{
    const struct parameter *p = &r->m->d.parameters[index];
    struct bytes list = vector(r, entry, 1, 4, 0, p->tensor.name);
    if (!r->code && (!list.found || list.count != (uint64_t)r->m->d.state_count))
        damaged(r, p->tensor.name, "other optimizer state than this optimizer keeps");
    for (size_t i = 0; !r->code && i < list.count; i++) {
        struct table t = element(r, &list, i, p->tensor.name);
        struct bytes name = string(r, &t, 0, p->tensor.name);
        if (r->code)
            return;
        const char *text = (const char *)r->data + name.pos;
        int k = name.count == 9 ? text[8] - '0' : -1;
        if (k < 0 || k >= r->m->d.state_count || compare(text, 8, "momentum", 8)) {
            damaged(r, p->tensor.name, "other optimizer state than this optimizer keeps");
            return;
        }
        if (r->m->d.seen[index] & (uint8_t)(4 << k)) {
            damaged(r, p->tensor.name, "a moment is a duplicate name");
            return;
        }
        r->m->d.seen[index] |= (uint8_t)(4 << k);
        const struct state *s = &r->m->d.states[k];
        int64_t dims[MOST_DIMS];
        model_tensor like = state_values(s, p, dims);
        values(r, &t, &like, state_of(r->m, s, p));
    }
}

static void read_group(struct reader *r, const struct table *root)
{
    struct bytes groups = vector(r, root, 2, 4, 0, "optimizer_groups");
    if (r->code || !groups.count || !has_optimizer(r->m))
        return;
    struct table group = element(r, &groups, 0, "optimizer_groups");
    struct bytes name = string(r, &group, 0, "group_name");
    if (r->code)
        return;
    if (groups.count > 1 || compare((const char *)r->data + name.pos, name.count, "group0", 6)) {
        damaged(r, "optimizer_groups", "one group 'group0' is supported");
        return;
    }
    r->m->step = (int64_t)scalar(r, &group, 1, 8, 0, "step");
    r->m->initial_rate = as_float(scalar(r, &group, 2, 4, 0, "initial_learning_rate"));
    if (!r->code && r->m->step < 0)
        damaged(r, "step", "is negative");
    if (!r->code && bad_rate(r->m->initial_rate))
        damaged(r, "initial_learning_rate", NO_RATE);
    struct bytes states = vector(r, &group, 3, 4, 0, "optimizer_states");
    if (!r->code && !states.found)
        damaged(r, "optimizer_states", "the list is missing");
    for (size_t i = 0; !r->code && i < states.count; i++) {
        struct table entry = element(r, &states, i, "optimizer_states");
        struct bytes owner = string(r, &entry, 0, "param_name");
        int index = find(r, &owner, 2, "optimizer state of");
        if (index >= 0 && !r->m->d.parameters[index].tensor.trainable)
            damaged(r, r->m->d.parameters[index].tensor.name, "has optimizer state, but is frozen");
        if (!r->code)
            read_states(r, &entry, index);
    }
}

static void read_properties(struct reader *r, const struct table *root)
{
    static const char kinds[][8] = {"ints", "floats", "strings"}; /* without addresses to load */
    unsigned seen = 0; /* the runtime's properties, a bit each */
    struct table bag = child(r, root, 3, "property_bag");
    for (uint32_t kind = MODEL_INT; !r->code && bag.pos && kind <= MODEL_STRING; kind++) {
        struct bytes list = vector(r, &bag, kind, 4, 0, kinds[kind]);
        for (size_t i = 0; !r->code && i < list.count; i++) {
            struct table t = element(r, &list, i, kinds[kind]);
            struct bytes name = string(r, &t, 0, "a property's name");
            struct property p;
            begin_property(&p, kind);
            p.name = (uint32_t)name.count;
            struct bytes text = {0, 0, 0};
            if (kind == MODEL_INT)
                p.integer = (int64_t)scalar(r, &t, 1, 8, 0, "a property");
            else if (kind == MODEL_FLOAT)
                p.number = as_float(scalar(r, &t, 1, 4, 0, "a property"));
            else
                text = string(r, &t, 1, "a property's value");
            if (r->code)
                return;
            const char *label = (const char *)r->data + name.pos;
            p.text = (uint32_t)text.count;
            int own = find_own(label, name.count);
            unsigned bit = own < OWN_PROPERTIES ? 1u << own : 0;
            unsigned is_again = seen & bit;
            seen |= bit;
            if (is_again) {
                damaged(r, own_names[own], "is a duplicate name");
            } else if (own == OWN_LEARNING_RATE && kind != MODEL_STRING) {
                r->m->rate = kind == MODEL_INT ? (float)p.integer : p.number;
                if (bad_rate(r->m->rate))
                    damaged(r, own_names[own], NO_RATE);
            } else if (own == OWN_LOSS_SCALE && is_scale(p.number)) {
                r->m->scale = p.number;
            } else if (own_count(r->m, own) && p.integer > 0) {
                *own_count(r->m, own) = p.integer;
            } else if (own == OWN_PROPERTIES) {
                r->code = put_property(r->m, &p, label, (const char *)r->data + text.pos, 0);
            }
        }
    }
}

enum { CHECKSUM = 4 }; /* the slot of the root table */

/* Compare the bytes after the checksum with it, if there is one. */
static void check_sum(struct reader *r, const struct table *root)
{
    size_t place = field(r, root, CHECKSUM, 4, "checksum");
    uint64_t stored = place ? load(r, place, 4, "checksum") : 0;
    size_t begin = place + 4;
    if (!r->code && place && stored != crc32(r->data + begin, r->size - begin))
        damaged(r, "checksum", "it does not fit the content, which is damaged");
}

static int read_checkpoint(model *m, const void *data, size_t size)
{
    struct reader r = {m, data, size, 2 * size, MODEL_OK};
    if (size < 8 || compare((const char *)data + 4, 4, "ODTC", 4)) {
        damaged(&r, "header", "not a checkpoint: identifier ODTC is missing");
        return r.code;
    }
    if (size > INT32_MAX) {
        damaged(&r, "header", "a checkpoint has up to 2 GiB");
        return r.code;
    }
    size_t pos = follow(&r, 0, "header");
    struct table none = {0, 0, 0, 0}, root = pos ? table_at(&r, pos, "checkpoint") : none;
    if (!r.code && (int32_t)scalar(&r, &root, 0, 4, 0, "version") != 2)
        damaged(&r, "version", "version 2 is supported");
    struct table module = child(&r, &root, 1, "module_state");
    int nominal = module.pos && scalar(&r, &module, 2, 1, 0, "is_nominal_state") != 0;
    if (!r.code && !nominal && module.pos && scalar(&r, &module, 3, 1, 0, "has_external_data"))
        damaged(&r, "module_state", "values outside the file are not supported");
    if (!r.code && module.pos) {
        read_parameters(&r, &module, 0, 1, nominal);
        read_parameters(&r, &module, 1, 0, nominal);
    }
    for (int i = 0; !r.code && i < m->d.parameter_count; i++)
        if (!(m->d.seen[i] & 1))
            damaged(&r, m->d.parameters[i].tensor.name, "is missing");
    read_group(&r, &root);
    read_properties(&r, &root);
    check_sum(&r, &root);
    m->loaded = !r.code && !nominal;
    return r.code;
}
