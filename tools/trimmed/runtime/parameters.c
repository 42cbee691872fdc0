/* Parameters by index, by name, and as one buffer. */

int model_parameter_count(const model *m)
{
    return m ? m->d.parameter_count : 0;
}

const model_tensor *model_parameter_info(const model *m, int index)
{
    return m && index >= 0 && index < m->d.parameter_count ? &m->d.parameters[index].tensor : NULL;
}

int model_find_parameter(const model *m, const char *name)
{
    size_t n = name ? length(name) : 0;
    for (int i = 0; m && name && i < m->d.parameter_count; i++)
        if (!compare(name, n, m->d.parameters[i].tensor.name,
                     length(m->d.parameters[i].tensor.name)))
            return i;
    return -1;
}

void *model_parameter(model *m, int index)
{
    if (!m || !m->loaded || !model_parameter_info(m, index))
        return NULL;
    return at(m, m->d.param_at + m->d.parameters[index].offset);
}

#if MODEL_TRAINS
void *model_gradient(model *m, int index)
{
    const model_tensor *info = model_parameter_info(m, index);
    if (!m || !m->d.grad || !info || !info->trainable)
        return NULL;
    m->has_gradients = 1; /* the caller can write them now */
    return at(m, m->d.grad_at + m->d.parameters[index].offset);
}
#endif

int model_is_loaded(const model *m)
{
    return m && m->loaded;
}

size_t model_parameters_size(const model *m, int trainable_only)
{
    size_t count = 0;
    for (int i = 0; m && i < m->d.parameter_count; i++)
        if (m->d.parameters[i].listed && (m->d.parameters[i].tensor.trainable || !trainable_only))
            count += m->d.parameters[i].elements;
    return count;
}

static int check_buffer(model *m, const void *values, size_t count, int trainable_only, int dtype)
{
    if (!m)
        return MODEL_BAD_INPUT;
    size_t size = model_parameters_size(m, trainable_only);
    if (!values && size) /* empty lists of other languages have no address */
        return fail(m, MODEL_BAD_INPUT, "the buffer for the %d elements of the parameters is NULL",
                    (int64_t)size);
    if (count != size)
        return fail(m, MODEL_BAD_INPUT, "the parameters have %d elements, the buffer %d",
                    (int64_t)size, (int64_t)count);
    for (int i = 0; i < m->d.parameter_count; i++)
        if (m->d.parameters[i].listed && m->d.parameters[i].tensor.dtype != dtype
            && (m->d.parameters[i].tensor.trainable || !trainable_only))
            return fail(m, MODEL_BAD_INPUT, "parameter '%s' is not float%d",
                        m->d.parameters[i].tensor.name, (int64_t)(dtype == MODEL_F64 ? 64 : 32));
    return MODEL_OK;
}

/* Copy all parameters to `out` or from `in`. */
static void move(model *m, uint8_t *out, const uint8_t *in, int trainable_only)
{
    for (int i = 0; i < m->d.parameter_count; i++) {
        const struct parameter *p = &m->d.parameters[i];
        if (!p->listed || (!p->tensor.trainable && trainable_only))
            continue;
        uint8_t *mine = at(m, m->d.param_at + p->offset);
        if (in) {
            copy(mine, in, p->tensor.bytes);
            in += p->tensor.bytes;
        } else {
            copy(out, mine, p->tensor.bytes);
            out += p->tensor.bytes;
        }
    }
}

static int get_all(model *m, void *values, size_t count, int trainable_only, int dtype)
{
    int code = check_buffer(m, values, count, trainable_only, dtype);
    if (!code && !(code = need_values(m)))
        move(m, values, NULL, trainable_only);
    return code;
}

static int set_all(model *m, const void *values, size_t count, int trainable_only, int dtype)
{
    int code = check_buffer(m, values, count, trainable_only, dtype);
    if (code)
        return code;
    if (!m->loaded && trainable_only)
        return fail(m, MODEL_BAD_STATE,
                    "a model without values takes all parameters: trainable_only = 0");
    move(m, NULL, values, trainable_only);
    m->loaded = 1;
    m->is_waiting = 0;
    return MODEL_OK;
}

int model_get_parameters(model *m, float *values, size_t count, int trainable_only)
{
    return get_all(m, values, count, trainable_only, MODEL_F32);
}

int model_set_parameters(model *m, const float *values, size_t count, int trainable_only)
{
    return set_all(m, values, count, trainable_only, MODEL_F32);
}

int model_get_parameters_f64(model *m, double *values, size_t count, int trainable_only)
{
    return get_all(m, values, count, trainable_only, MODEL_F64);
}

int model_set_parameters_f64(model *m, const double *values, size_t count, int trainable_only)
{
    return set_all(m, values, count, trainable_only, MODEL_F64);
}

/* --- properties: records of different sizes without gaps, in the order of their names */

static struct property *property_at(const model *m, size_t offset)
{
    return (struct property *)(void *)at(m, m->d.properties_at + offset);
}

static const char *name_of(const struct property *p)
{
    return (const char *)(p + 1);
}

static void shift(uint8_t *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = to < from ? i : n - 1 - i; /* the two ranges may overlap */
        to[k] = from[k];
        NO_LIBRARY_CALL();
    }
}

/* Return the place of the property with this name, or the place where it belongs.  *bytes becomes
 * its size, or 0 if there is no such property. */
static size_t place_property(const model *m, const char *name, size_t n, size_t *bytes)
{
    size_t place = 0;
    for (*bytes = 0; place < m->property_bytes; place += property_at(m, place)->bytes) {
        const struct property *p = property_at(m, place);
        int order = compare(name_of(p), p->name, name, n);
        *bytes = order ? 0 : p->bytes;
        if (order >= 0)
            break;
    }
    return place;
}

#if MODEL_TRAINS
/* Return where the model has the number of one of the runtime's properties; NULL if that is an
 * integer. */
static float *own_float(model *m, int own)
{
    return own == OWN_LEARNING_RATE ? &m->rate : own == OWN_LOSS_SCALE ? &m->scale : NULL;
}

#endif

/* The same for integers; NULL if it is a float. */
static int64_t *own_count(model *m, int own)
{
    return own == OWN_DRAWS        ? &m->draws
           : own == OWN_SKIPPED    ? &m->skipped
           : own == OWN_GOOD_STEPS ? &m->good_steps
                                   : NULL;
}

/* Return the number of the runtime's property with this name, or OWN_PROPERTIES if it is the
 * user's. */
static int find_own(const char *name, size_t n)
{
    int own = 0;
    while (own < OWN_PROPERTIES && compare(name, n, own_names[own], length(own_names[own])))
        own++;
    return own;
}

#if MODEL_TRAINS
static void drop_property(model *m, const char *name, size_t n)
{
    size_t bytes, place = place_property(m, name, n, &bytes);
    uint8_t *base = at(m, m->d.properties_at + place);
    shift(base, base + bytes, m->property_bytes - place - bytes);
    m->property_bytes -= bytes;
}
#endif

/* Add a property.  If the name exists, replace its property if `replace` is not 0, otherwise fail.
 * The runtime's own records have room set aside for them. */
static int put_property(model *m, struct property *value, const char *name, const char *text,
                        int replace)
{
    size_t old, place = place_property(m, name, value->name, &old);
    size_t bytes = (sizeof *value + (size_t)value->name + 1 + value->text + 1 + 7) / 8 * 8;
    size_t rest = m->property_bytes - place - old;
    int reserved = find_own(name, value->name) < OWN_PROPERTIES;
    if (old && !replace)
        return fail(m, MODEL_BAD_CHECKPOINT, "property '%s' is a duplicate name", name);
    if (!reserved && bytes + place + rest > MODEL_PROPERTY_BYTES)
        return fail(m, MODEL_NO_MEMORY, "properties need %d bytes, this build keeps %d",
                    (int64_t)(bytes + place + rest), (int64_t)MODEL_PROPERTY_BYTES);
    uint8_t *base = at(m, m->d.properties_at + place);
    shift(base + bytes, base + old, rest);
    zero(base, bytes);
    value->bytes = (uint32_t)bytes;
    copy(base, value, sizeof *value);
    copy(base + sizeof *value, name, value->name);
    copy(base + sizeof *value + value->name + 1, text, value->text);
    m->property_bytes = place + bytes + rest;
    return MODEL_OK;
}

/* Begin a property without a name; to fill a struct, compilers would call a library function. */
static void begin_property(struct property *p, uint32_t kind)
{
    zero(p, sizeof *p);
    p->kind = kind;
}

#if MODEL_TRAINS
static int set_property(model *m, struct property *value, const char *name, const char *text)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (!name || !text)
        return fail(m, MODEL_BAD_INPUT, "the %s of a property is NULL", name ? "text" : "name");
    size_t name_bytes = length(name), text_bytes = length(text);
    if (name_bytes > MODEL_PROPERTY_BYTES || text_bytes > MODEL_PROPERTY_BYTES)
        return fail(m, MODEL_NO_MEMORY, "a property is larger than the %d bytes for all of them",
                    (int64_t)MODEL_PROPERTY_BYTES);
    if (!is_utf8((const uint8_t *)name, name_bytes) || !is_utf8((const uint8_t *)text, text_bytes))
        return fail(m, MODEL_BAD_INPUT, "the name or text of a property is not UTF-8");
    if (find_own(name, name_bytes) < OWN_PROPERTIES)
        return fail(m, MODEL_BAD_INPUT, "a property cannot be named '%s'", name);
    value->name = (uint32_t)name_bytes;
    value->text = (uint32_t)text_bytes;
    return put_property(m, value, name, text, 1);
}

int model_set_property_int(model *m, const char *name, int64_t value)
{
    struct property p;
    begin_property(&p, MODEL_INT);
    p.integer = value;
    return set_property(m, &p, name, "");
}

int model_set_property_float(model *m, const char *name, float value)
{
    struct property p;
    begin_property(&p, MODEL_FLOAT);
    p.number = value;
    return set_property(m, &p, name, "");
}

int model_set_property_string(model *m, const char *name, const char *value)
{
    struct property p;
    begin_property(&p, MODEL_STRING);
    return set_property(m, &p, name, value);
}
#endif

int model_property_count(const model *m)
{
    int count = 0;
    for (size_t i = 0; m && i < m->property_bytes; i += property_at(m, i)->bytes)
        count++;
    return count;
}

int model_get_property(model *m, int index, const char **name, int *kind, int64_t *integer,
                       float *value, const char **text)
{
    size_t place = 0;
    if (!m)
        return MODEL_BAD_INPUT;
    for (int i = 0; i < index && place < m->property_bytes; i++)
        place += property_at(m, place)->bytes;
    if (index < 0 || place >= m->property_bytes)
        return fail(m, index < 0 ? MODEL_BAD_INPUT : MODEL_NO_NAME,
                    "there is no property %d: there are %d, counted from 0", (int64_t)index,
                    (int64_t)model_property_count(m));
    const struct property *p = property_at(m, place);
    if (name)
        *name = name_of(p);
    if (kind)
        *kind = (int)p->kind;
    if (integer)
        *integer = p->integer;
    if (value)
        *value = p->number;
    if (text)
        *text = name_of(p) + p->name + 1;
    return MODEL_OK;
}
