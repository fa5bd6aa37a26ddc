/* What a machine's device does, decided by the first eight bytes of the file that DEVICE names: so many milliseconds
 * for each sync; below 0 no sync ends until that changes; FAILING and above, they answer EIO. Preloaded into a node. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FAILING 1000000
#define STEP_MS 5

static volatile int64_t *device;

__attribute__((constructor)) static void find_device(void)
{
    const char *path = getenv("DEVICE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        device = found;
}

static void sleep_ms(int64_t ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static int wait_for_device(void)
{
    if (!device)
        return 0;
    while (*device < 0)
        sleep_ms(STEP_MS);
    int64_t ms = *device;
    if (ms >= FAILING) {
        errno = EIO;
        return -1;
    }
    if (ms)
        sleep_ms(ms);
    return 0;
}

static int pass(const char *name, int fd)
{
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    return wait_for_device() ? -1 : real(fd);
}

int fsync(int fd) { return pass("fsync", fd); }

int fdatasync(int fd) { return pass("fdatasync", fd); }

static ssize_t pass_write(const char *name, int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    ssize_t (*real)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, name);
    return flags & RWF_DSYNC && wait_for_device() ? -1 : real(fd, parts, count, at, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    return pass_write("pwritev2", fd, parts, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    return pass_write("pwritev64v2", fd, parts, count, at, flags);
}
