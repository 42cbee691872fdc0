/* The native methods of Java.  The function table of a Java environment has the order given in
 * chapter 4 of the JNI specification, so no header of a JDK is needed. */
#include "@name@.h"

typedef void *object;
typedef void (*any)(void);
typedef const any *const *environment;

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((__visibility__("default")))
#endif
#define METHOD(result, name) EXPORT result Java_edgegrad_@mangled@_Native_##name

/* A size from Java.  On 32-bit processors, a size that does not fit becomes the largest one, which
 * the C function refuses. */
#define SIZE(n) (sizeof(size_t) < 8 && ((n) < 0 || (n) > INT32_MAX) ? SIZE_MAX : (size_t)(n))

enum {
    GET_LENGTH = 171, NEW_BYTES = 176, NEW_LONGS = 180, GET_BYTES = 184, GET_INTS = 187,
    GET_FLOATS = 189, GET_DOUBLES = 190, RELEASE_BYTES = 192, RELEASE_INTS = 195,
    RELEASE_FLOATS = 197, RELEASE_DOUBLES = 198, SET_BYTES = 208,
    SET_LONGS = 212, GET_CRITICAL = 222, RELEASE_CRITICAL = 223
};
enum { COPY_BACK = 0, ABORT = 2 }; /* of releasing an array */

static int32_t length(environment env, object array)
{
    return array ? ((int32_t (*)(environment, object))(*env)[GET_LENGTH])(env, array) : 0;
}

static void *hold(environment env, int get, object array)
{
    void *(*function)(environment, object, uint8_t *);
    function = (void *(*)(environment, object, uint8_t *))(*env)[get];
    return array ? function(env, array, NULL) : NULL;
}

static void release(environment env, int how, object array, void *held, int32_t mode)
{
    if (held)
        ((void (*)(environment, object, void *, int32_t))(*env)[how])(env, array, held, mode);
}

static object make(environment env, int how, int32_t count)
{
    return ((object (*)(environment, int32_t))(*env)[how])(env, count);
}

static void fill(environment env, int how, object array, int32_t count, const void *values)
{
    if (array)
        ((void (*)(environment, object, int32_t, int32_t, const void *))(*env)[how])(
            env, array, 0, count, values);
}

static void copy_bytes(uint8_t *to, const uint8_t *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        to[i] = from[i];
}

METHOD(object, text)(environment env, object type, int64_t address)
{
    const char *text = (const char *)(intptr_t)address;
    int32_t count = 0;
    (void)type;
    while (text[count])
        count++;
    object bytes = make(env, NEW_BYTES, count);
    fill(env, SET_BYTES, bytes, count, text);
    return bytes;
}

METHOD(int64_t, tensorName)(environment env, object type, int64_t address)
{
    (void)env, (void)type;
    return (int64_t)(intptr_t)((const @name@_tensor *)(intptr_t)address)->name;
}

METHOD(object, facts)(environment env, object type, int64_t address)
{
    const @name@_tensor *t = (const @name@_tensor *)(intptr_t)address;
    int64_t first[3] = {t->dtype, (int64_t)t->bytes, t->trainable};
    object facts = make(env, NEW_LONGS, 3 + t->rank);
    int64_t *values = hold(env, GET_CRITICAL, facts);
    (void)type;
    if (values) {
        copy_bytes((uint8_t *)values, (const uint8_t *)first, sizeof first);
        copy_bytes((uint8_t *)(values + 3), (const uint8_t *)t->dims, 8 * (int64_t)t->rank);
    }
    release(env, RELEASE_CRITICAL, facts, values, COPY_BACK);
    return facts;
}

METHOD(void, read)(environment env, object type, int64_t address, object array, int64_t bytes)
{
    void *held = hold(env, GET_CRITICAL, array);
    (void)type;
    if (held)
        copy_bytes(held, (const uint8_t *)(intptr_t)address, bytes);
    release(env, RELEASE_CRITICAL, array, held, COPY_BACK);
}

METHOD(void, write)(environment env, object type, int64_t address, object array, int64_t bytes)
{
    void *held = hold(env, GET_CRITICAL, array);
    (void)type;
    if (held)
        copy_bytes((uint8_t *)(intptr_t)address, held, bytes);
    release(env, RELEASE_CRITICAL, array, held, ABORT);
}

/*@glue@*/
