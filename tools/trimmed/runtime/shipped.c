/* What a library of shipped kernels exports: see engine/kernels/shipped.py. */
#include <stdint.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((__visibility__("default")))
#endif

typedef void kernel(const int64_t *arguments, int64_t tid, int64_t threads);

extern kernel *const shipped_kernels[] __attribute__((__visibility__("hidden")));
extern const unsigned char shipped_keys[] __attribute__((__visibility__("hidden")));

struct entry {
    int64_t count;
    kernel *const *kernels;
    const unsigned char *keys;
};

API const struct entry *edgegrad_shipped(void);

const struct entry *edgegrad_shipped(void)
{
    static const struct entry found = {SHIPPED_COUNT, shipped_kernels, shipped_keys};
    return &found;
}
