/* Interposes file operations of a process (LD_PRELOAD) and lets chosen ones fail.
 *
 * The rules are in a file that the test and the process map together (FAULTLIB_RULES; `rules.py` writes it), so that a test
 * changes them while the process runs, and reads how often each has matched. A rule fails the calls of one operation on paths
 * that match its pattern (fnmatch(3)), after `skip` matching calls have passed, `times` times or for good (-1).
 *
 * A torn rule lets half of the first write that it matches through, as a disk that becomes full does, and fails the next one.
 *
 * A call on a descriptor matches by the path that the kernel names in /proc/self/fd.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RULES 16
#define PATTERN 256

/* The order is that of OPERATIONS in rules.py. */
enum operation { OPEN, READ, WRITE, SYNC, RENAME, TRUNCATE, LINK, UNLINK };

/* Result of `fault` instead of an error: half of the data is to be written. */
#define HALF -1

struct rule {
    int32_t active;
    int32_t operation;
    int32_t error;
    int32_t skip;
    int32_t times;
    int32_t matched;
    int32_t torn;
    char pattern[PATTERN];
};

static struct rule *rules;

/* Use the rules of the environment. A fork server calls this in the processes that it forks. */
__attribute__((constructor)) void faultlib_map_rules(void)
{
    const char *name = getenv("FAULTLIB_RULES");
    int descriptor = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return;
    void *mapped = mmap(NULL, RULES * sizeof(struct rule), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED)
        rules = mapped;
}

/* Return the error of a call on `path`, 0 to let it pass, HALF for a torn write. */
static int fault(enum operation operation, const char *path)
{
    if (!rules || !path)
        return 0;
    for (int i = 0; i < RULES; i++) {
        struct rule *rule = &rules[i];
        if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || rule->operation != (int32_t)operation)
            continue;
        if (fnmatch(rule->pattern, path, 0))
            continue;
        if (__atomic_fetch_sub(&rule->skip, 1, __ATOMIC_ACQ_REL) > 0)
            continue;
        if (__atomic_exchange_n(&rule->torn, 0, __ATOMIC_ACQ_REL))
            return HALF;
        if (rule->times >= 0 && __atomic_fetch_sub(&rule->times, 1, __ATOMIC_ACQ_REL) <= 0) {
            __atomic_store_n(&rule->active, 0, __ATOMIC_RELEASE);
            continue;
        }
        __atomic_fetch_add(&rule->matched, 1, __ATOMIC_ACQ_REL);
        return rule->error;
    }
    return 0;
}

static int fault_of_descriptor(enum operation operation, int descriptor)
{
    char link[64], path[PATH_MAX];
    if (!rules)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return fault(operation, path);
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

#define FAIL_PATH(operation, path) \
    do { int error = fault(operation, path); if (error) { errno = error; return -1; } } while (0)
#define FAIL_DESCRIPTOR(operation, descriptor) \
    do { int error = fault_of_descriptor(operation, descriptor); if (error) { errno = error; return -1; } } while (0)

#define OPENER(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list arguments; va_start(arguments, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
        va_end(arguments); \
        FAIL_PATH(OPEN, path); \
        return REAL(name)(path, flags, mode); \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name) \
    int name(int directory, const char *path, int flags, ...) \
    { \
        va_list arguments; va_start(arguments, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
        va_end(arguments); \
        FAIL_PATH(OPEN, path); \
        return REAL(name)(directory, path, flags, mode); \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

#define ON_DESCRIPTOR(operation, type, name, parameters, arguments) \
    type name parameters { FAIL_DESCRIPTOR(operation, descriptor); return REAL(name) arguments; }
ON_DESCRIPTOR(READ, ssize_t, read, (int descriptor, void *data, size_t size), (descriptor, data, size))
ON_DESCRIPTOR(READ, ssize_t, pread, (int descriptor, void *data, size_t size, off_t at), (descriptor, data, size, at))
ON_DESCRIPTOR(READ, ssize_t, pread64, (int descriptor, void *data, size_t size, off64_t at), (descriptor, data, size, at))
ON_DESCRIPTOR(SYNC, int, fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR(SYNC, int, fdatasync, (int descriptor), (descriptor))
ON_DESCRIPTOR(TRUNCATE, int, ftruncate, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(TRUNCATE, int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))

#define WRITER(name, parameters, arguments) \
    ssize_t name parameters \
    { \
        int error = fault_of_descriptor(WRITE, descriptor); \
        if (error == HALF) \
            size = (size + 1) / 2; \
        else if (error) { errno = error; return -1; } \
        return REAL(name) arguments; \
    }
WRITER(write, (int descriptor, const void *data, size_t size), (descriptor, data, size))
WRITER(pwrite, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at))
WRITER(pwrite64, (int descriptor, const void *data, size_t size, off64_t at), (descriptor, data, size, at))

#define ON_PATH(operation, name, matched, parameters, arguments) \
    int name parameters { FAIL_PATH(operation, matched); return REAL(name) arguments; }
ON_PATH(TRUNCATE, truncate, path, (const char *path, off_t size), (path, size))
ON_PATH(RENAME, rename, to, (const char *from, const char *to), (from, to))
ON_PATH(RENAME, renameat, to, (int from_directory, const char *from, int to_directory, const char *to),
        (from_directory, from, to_directory, to))
ON_PATH(LINK, link, to, (const char *from, const char *to), (from, to))
ON_PATH(LINK, linkat, to, (int from_directory, const char *from, int to_directory, const char *to, int flags),
        (from_directory, from, to_directory, to, flags))
ON_PATH(UNLINK, unlink, path, (const char *path), (path))
