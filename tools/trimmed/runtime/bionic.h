/* Bionic, Android's C library, as far as builds call it.
 *
 * ziglang has no headers for Android, so this file takes the place of each that the source of a
 * build includes, and the library is linked with an empty one that has the functions declared here
 * (tools/trimmed/bionic.py).  Sizes and numbers belong to Android's ABI, which never changes:
 * bionic's bits/pthread_types.h, bits/sysconf.h and sys/stat.h, and Linux's headers. */
#ifndef EDGEGRAD_BIONIC_H
#define EDGEGRAD_BIONIC_H

#include <stddef.h>
#include <stdint.h>

/* errno.h */
extern int *__errno(void);
#define errno (*__errno())

/* stdlib.h, string.h */
extern void *malloc(size_t size);
extern void free(void *block);
extern char *realpath(const char *path, char *out);
extern void *memcpy(void *to, const void *from, size_t bytes);
extern void *memmove(void *to, const void *from, size_t bytes);
extern void *memset(void *to, int value, size_t bytes);
#ifdef __arm__ /* compilers call these for them, in 32-bit code alone */
extern void __aeabi_memcpy(void *to, const void *from, size_t bytes);
extern void __aeabi_memcpy4(void *to, const void *from, size_t bytes);
extern void __aeabi_memcpy8(void *to, const void *from, size_t bytes);
extern void __aeabi_memset(void *to, size_t bytes, int value);
extern void __aeabi_memclr(void *to, size_t bytes);
extern void __aeabi_memclr4(void *to, size_t bytes);
extern void __aeabi_memclr8(void *to, size_t bytes);
#endif
extern int memcmp(const void *a, const void *b, size_t bytes);
extern int strcmp(const char *a, const char *b);
extern size_t strlen(const char *text);
extern char *strerror(int number);

/* stdio.h */
typedef struct __sFILE FILE;
extern FILE *fopen(const char *path, const char *mode);
extern int fclose(FILE *file);
extern size_t fread(void *to, size_t size, size_t count, FILE *file);
extern size_t fwrite(const void *from, size_t size, size_t count, FILE *file);
extern int fflush(FILE *file);
extern int fileno(FILE *file);
extern int remove(const char *path);
extern int rename(const char *from, const char *to);

/* unistd.h, fcntl.h */
enum { O_RDONLY = 0, _SC_PAGESIZE = 0x27, _SC_NPROCESSORS_ONLN = 0x61 };
extern int open(const char *path, int flags, ...);
extern int close(int file);
extern int fsync(int file);
extern int getpid(void);
extern long sysconf(int name);

/* sys/stat.h */
#ifdef __arm__
typedef unsigned short mode_t;
#else
typedef unsigned int mode_t;
#endif
enum { S_IFMT = 0170000, S_IFREG = 0100000 };
struct stat {
    uint64_t st_dev, st_ino; /* the second, on ARM: padding and half a number, never read */
#ifdef __x86_64__
    uint64_t st_nlink;
    mode_t st_mode;
    uint32_t st_uid, st_gid, unused;
    uint64_t st_rdev;
    int64_t st_size;
    int64_t rest[11];
#elif defined(__arm__)
    uint32_t st_mode, st_nlink, st_uid, st_gid;
    uint64_t st_rdev, unused;
    int64_t st_size;
    int64_t rest[6];
#else
    mode_t st_mode;
    uint32_t st_nlink, st_uid, st_gid;
    uint64_t st_rdev, unused;
    int64_t st_size;
    int64_t rest[9];
#endif
};
#ifdef __x86_64__
_Static_assert(offsetof(struct stat, st_size) == 48 && sizeof(struct stat) == 144, "stat");
#elif defined(__arm__)
_Static_assert(offsetof(struct stat, st_mode) == 16, "stat");
_Static_assert(offsetof(struct stat, st_size) == 48 && sizeof(struct stat) == 104, "stat");
#else
_Static_assert(sizeof(void *) == 8, "x86 of 32 bits has other sizes");
_Static_assert(offsetof(struct stat, st_size) == 48 && sizeof(struct stat) == 128, "stat");
#endif
extern int stat(const char *path, struct stat *out);
extern int chmod(const char *path, mode_t mode);

/* sys/mman.h, sys/auxv.h */
#define MADV_HUGEPAGE 14
enum { AT_HWCAP = 16, AT_HWCAP2 = 26 };
extern int madvise(void *address, size_t bytes, int advice);
extern unsigned long getauxval(unsigned long type);

/* sched.h */
extern int sched_yield(void);

/* pthread.h */
typedef long pthread_t;
enum { MUTEX_WORDS = sizeof(void *) == 8 ? 10 : 1, CONDITION_WORDS = sizeof(void *) == 8 ? 12 : 1 };
typedef struct pthread_mutex {
    int32_t opaque[MUTEX_WORDS];
} pthread_mutex_t;
typedef struct pthread_cond {
    int32_t opaque[CONDITION_WORDS];
} pthread_cond_t;
extern int pthread_create(pthread_t *out, const void *attributes, void *(*run)(void *), void *with);
extern int pthread_join(pthread_t thread, void **out);
extern int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes);
extern int pthread_mutex_destroy(pthread_mutex_t *mutex);
extern int pthread_mutex_lock(pthread_mutex_t *mutex);
extern int pthread_mutex_unlock(pthread_mutex_t *mutex);
extern int pthread_cond_init(pthread_cond_t *condition, const void *attributes);
extern int pthread_cond_destroy(pthread_cond_t *condition);
extern int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
extern int pthread_cond_broadcast(pthread_cond_t *condition);

#endif
