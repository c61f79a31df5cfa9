/* Preloaded into a program: notes every descriptor below 3 that it is given, for however short a time.
 *
 * What opens goes through here. A number below 3 is noted in the file that SHMQ_LOW_LOG names, unless nothing can be
 * written to it: O_PATH, or a file that is only read, as Python reads the modules that it imports. /dev/null is no harm.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real;                                                                                     \
    real = real ? real : (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int noted(int fd, const char *call, const char *name)
{
    const char *path = getenv("SHMQ_LOW_LOG");
    if (fd < 0 || fd > 2 || path == NULL || strcmp(name, "/dev/null") == 0) {
        return fd;
    }
    char line[600];
    const int length = snprintf(line, sizeof line, "%s %.500s is descriptor %d\n", call, name, fd);
    REAL(open);
    const int low = real(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    const ssize_t wrote = write(low, line, (size_t)length);
    (void)wrote;
    close(low);
    return fd;
}

static int noted_file(int fd, int flags, const char *name)
{
    return (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_RDONLY ? fd : noted(fd, "open", name);
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        const mode_t mode = va_arg(rest, mode_t);                                                                      \
        va_end(rest);                                                                                                  \
        REAL(name);                                                                                                    \
        return noted_file(real(path, flags, mode), flags, path);                                                       \
    }

#define OPENAT(name)                                                                                                   \
    int name(int directory, const char *path, int flags, ...)                                                          \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        const mode_t mode = va_arg(rest, mode_t);                                                                      \
        va_end(rest);                                                                                                  \
        REAL(name);                                                                                                    \
        return noted_file(real(directory, path, flags, mode), flags, path);                                            \
    }

#define FCNTL(name)                                                                                                    \
    int name(int fd, int command, ...)                                                                                 \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, command);                                                                                       \
        void *argument = va_arg(rest, void *);                                                                         \
        va_end(rest);                                                                                                  \
        REAL(name);                                                                                                    \
        const int result = real(fd, command, argument);                                                                \
        return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? noted(result, "fcntl", "") : result;                 \
    }

#define PAIR(name, parameters, arguments)                                                                              \
    int name parameters                                                                                                \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        const int result = real arguments;                                                                             \
        if (result == 0) {                                                                                             \
            noted(two[0], #name, "");                                                                                  \
            noted(two[1], #name, "");                                                                                  \
        }                                                                                                              \
        return result;                                                                                                 \
    }

#define ONE(name, parameters, arguments)                                                                               \
    int name parameters                                                                                                \
    {                                                                                                                  \
        REAL(name);                                                                                                    \
        return noted(real arguments, #name, "");                                                                       \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FCNTL(fcntl)
FCNTL(fcntl64)
PAIR(pipe, (int two[2]), (two))
PAIR(pipe2, (int two[2], int flags), (two, flags))
PAIR(socketpair, (int family, int type, int protocol, int two[2]), (family, type, protocol, two))
ONE(socket, (int family, int type, int protocol), (family, type, protocol))
ONE(dup, (int fd), (fd))
ONE(eventfd, (unsigned value, int flags), (value, flags))
ONE(epoll_create1, (int flags), (flags))
ONE(memfd_create, (const char *name, unsigned flags), (name, flags))
ONE(shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
ONE(accept4, (int fd, struct sockaddr *address, socklen_t *bytes, int flags), (fd, address, bytes, flags))
