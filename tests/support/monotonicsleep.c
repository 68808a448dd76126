/* Sleeps by the monotonic clock as the kernel does. libfaketime takes the time of that clock for one that it has moved, and fails.
   Loaded before libfaketime (tests/steady.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int (*sleep_function)(clockid_t, int, const struct timespec *, struct timespec *);

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    if (clock != CLOCK_MONOTONIC) {
        return ((sleep_function)dlsym(RTLD_NEXT, "clock_nanosleep"))(clock, flags, until, left);
    }
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
}
