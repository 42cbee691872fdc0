/* The exports of a library of shipped kernels: see kernels/binaries/shipped.py.  Its kernels come
   in several objects, each with a table of them; SHIPPED_OBJECTS(X) is X(0) X(1) ... */
#include <stdint.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
/* Windows calls this where a library has no C runtime; nothing begins or ends here. */
int __stdcall DllMainCRTStartup(void *library, uint32_t reason, void *reserved)
{
    (void)library, (void)reason, (void)reserved;
    return 1;
}
#else
#define API __attribute__((__visibility__("default")))
#endif

typedef void kernel(const int64_t *arguments, int64_t tid, int64_t threads);

#define DECLARE(n) \
    extern kernel *const shipped_kernels_##n[] __attribute__((__visibility__("hidden")));
#define TABLE(n) shipped_kernels_##n,

SHIPPED_OBJECTS(DECLARE)

struct entry {
    int64_t count;                    /* of all kernels */
    int64_t share;                    /* kernels an object has; the last one may have fewer */
    kernel *const *const *tables;     /* one an object */
};

API const struct entry *edgegrad_shipped(void);

const struct entry *edgegrad_shipped(void)
{
    static kernel *const *const tables[] = {SHIPPED_OBJECTS(TABLE)};
    static const struct entry found = {SHIPPED_COUNT, SHIPPED_SHARE, tables};
    return &found;
}
