/* A layer between a process and its C library that counts, records and refuses what is done to files.
 *
 * Preloaded (LD_PRELOAD). It minds only descriptors of regular files and directories below the directory given to
 * shim_watch, and passes everything on to the C library until told otherwise:
 *
 *   shim_record(path)   append every change of those files to a log, in the order in which they were made
 *                       (prove/power/disk_images.py reads it); NULL ends that. Memory maps are not recorded: what is mapped here is
 *                       made anew after the machine was started again.
 *   shim_fail(...)      refuse the n-th call of a class from now on with an errno, once or from then on; with `part`
 *                       a write is made short instead: only that share of a thousand parts of it is written.
 *   shim_read_only(b)   refuse every change with EROFS, as on a file system that the kernel has made read-only because
 *                       it found it damaged: what is open for writing stays open, which no remount allows.
 *   shim_calls(class)   how many calls of a class there were since the last shim_fail.
 *
 * One mutex is held from before each recorded call until its record is written, so that the log's order is the order
 * of the calls. Children that are forked while a log is written share mutex and log: one order of what all of them did.
 * It is recursive in effect: the layer itself only uses raw system calls.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum class { OPEN, READ, WRITE, TRUNCATE, SYNC, LOCK, MAP, UNLINK, RENAME, MKDIR, LINK, CLASSES };
enum kind { CREATED = 1, WRITTEN, TRUNCATED, SYNCED, RENAMED, UNLINKED, MADE, REMOVED, LINKED };

/* One record of the log: this header, then `first` bytes of path, `second` bytes of path, `length` bytes of data.
 * A file that was created without a name has none. The offset of TRUNCATED is the size, that of RENAMED the flags. */
struct record {
    uint32_t kind;
    uint32_t first, second;
    uint32_t unused;
    uint64_t inode;
    uint64_t offset;
    uint64_t length;
};

static char watched[PATH_MAX];
static size_t watched_length;
static int log_descriptor = -1;
static pthread_mutex_t *mutex; /* in memory that forked children share */
static struct {
    long at; /* the call that is refused, counted from 1; 0: none */
    int error, sticky, part;
} refusal[CLASSES];
static volatile long calls[CLASSES];
static volatile int read_only;

__attribute__((constructor)) static void prepare(void) {
    pthread_mutexattr_t attributes;
    mutex = (void *)syscall(SYS_mmap, NULL, sizeof *mutex, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mutex == MAP_FAILED) abort();
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
}

static void take(void) {
    if (pthread_mutex_lock(mutex) == EOWNERDEAD) abort(); /* who died may have left half a record */
}

void shim_watch(const char *directory) {
    watched_length = strlen(strncpy(watched, directory, sizeof watched - 1));
}

int shim_record(const char *path) {
    take();
    if (log_descriptor >= 0) syscall(SYS_close, log_descriptor);
    log_descriptor = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    pthread_mutex_unlock(mutex);
    return path && log_descriptor < 0 ? errno : 0;
}

void shim_fail(int of, long at, int error, int sticky, int part) {
    refusal[of].at = 0;
    refusal[of].error = error, refusal[of].sticky = sticky, refusal[of].part = part;
    for (int each = 0; each < CLASSES; each++) calls[each] = 0;
    refusal[of].at = at;
}

void shim_forgive(void) {
    for (int each = 0; each < CLASSES; each++) refusal[each].at = 0;
}

void shim_read_only(int whether) { read_only = whether; }

long shim_calls(int of) { return calls[of]; }

static int below(const char *path) {
    return watched_length && strncmp(path, watched, watched_length) == 0 &&
           (path[watched_length] == '/' || path[watched_length] == 0);
}

/* Write the absolute path of `name` seen from `directory` into `path`; whether it lies in what is watched. */
static int locate(int directory, const char *name, char *path) {
    path[0] = 0;
    if (!watched_length || !name) return 0;
    if (name[0] == '/') return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX && below(path);
    char link[64];
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return snprintf(path + length, PATH_MAX - length, "/%s", name) < PATH_MAX - length && below(path);
}

/* Whether a descriptor is of a file or directory that is watched, be it unlinked or without a name. */
static int minds(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!watched_length || descriptor < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Count a call; the errno with which it is to be refused, -1 if it is to be made short, 0 if it is to be made. */
static int refused(int of) {
    long number = __sync_add_and_fetch(&calls[of], 1), at = refusal[of].at;
    if (!at || (refusal[of].sticky ? number < at : number != at)) return 0;
    return refusal[of].part ? -1 : refusal[of].error;
}

#define REFUSE(of)                    \
    do {                              \
        int why = refused(of);        \
        if (why > 0) {                \
            errno = why;              \
            return -1;                \
        }                             \
    } while (0)

#define CHANGE(of)                    \
    do {                              \
        if (read_only) {              \
            errno = EROFS;            \
            return -1;                \
        }                             \
        REFUSE(of);                   \
    } while (0)

static uint64_t inode_of(int descriptor) {
    struct stat status;
    return fstat(descriptor, &status) ? 0 : status.st_ino;
}

static void put(const void *bytes, size_t length) {
    const char *next = bytes;
    while (length > 0) {
        ssize_t done = syscall(SYS_write, log_descriptor, next, length);
        if (done <= 0) abort(); /* a log with a hole would prove nothing */
        next += done, length -= done;
    }
}

static void note(enum kind kind, uint64_t inode, uint64_t offset, const char *first, const char *second,
                 const void *data, uint64_t length) {
    if (log_descriptor < 0) return;
    struct record record = {kind, first ? strlen(first) : 0, second ? strlen(second) : 0, 0, inode, offset, length};
    put(&record, sizeof record);
    if (first) put(first, record.first);
    if (second) put(second, record.second);
    if (data) put(data, length);
}

/* Errno belongs to the call that was made, not to the layer. */
#define LOCKED(call, noting)              \
    do {                                  \
        take();                           \
        call;                             \
        int kept = errno;                 \
        noting;                           \
        pthread_mutex_unlock(mutex);      \
        errno = kept;                     \
    } while (0)

static int open_at(int directory, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int watched_one = locate(directory, name, path), made = -1;
    if (!watched_one) return syscall(SYS_openat, directory, name, flags, mode);
    if ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC))) CHANGE(OPEN);
    else REFUSE(OPEN);
    struct stat status;
    int unnamed = (flags & O_TMPFILE) == O_TMPFILE, creates = unnamed;
    LOCKED({
        if (!unnamed) creates = (flags & O_CREAT) && fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0;
        made = syscall(SYS_openat, directory, name, flags, mode);
    }, {
        if (made >= 0 && creates) note(CREATED, inode_of(made), 0, unnamed ? NULL : path, NULL, NULL, 0);
        if (made >= 0 && (flags & O_TRUNC)) note(TRUNCATED, inode_of(made), 0, NULL, NULL, NULL, 0);
    });
    return made;
}

#define MODE(flags)                                       \
    mode_t mode = 0;                                      \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                \
        va_list rest;                                     \
        va_start(rest, flags);                            \
        mode = va_arg(rest, unsigned int);                \
        va_end(rest);                                     \
    }

int open(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags | O_LARGEFILE, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return open_at(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return open_at(at, name, flags | O_LARGEFILE, mode); }

ssize_t read(int descriptor, void *into, size_t length) {
    if (minds(descriptor)) REFUSE(READ);
    return syscall(SYS_read, descriptor, into, length);
}

ssize_t pread(int descriptor, void *into, size_t length, off_t offset) {
    if (minds(descriptor)) REFUSE(READ);
    return syscall(SYS_pread64, descriptor, into, length, offset);
}
ssize_t pread64(int descriptor, void *into, size_t length, off64_t offset) {
    return pread(descriptor, into, length, offset);
}

/* Write at `offset`, or where the descriptor stands if that is negative. */
static ssize_t write_at(int descriptor, const void *from, size_t length, off64_t offset) {
    int watched_one = minds(descriptor);
    if (watched_one) {
        int why = read_only ? EROFS : refused(WRITE);
        if (why > 0) {
            errno = why;
            return -1;
        }
        if (why < 0 && length) {
            length = length * refusal[WRITE].part / 1000;
            length = length ? length : 1; /* as POSIX has it: nothing is written of nothing only */
        }
    }
    ssize_t done;
    if (!watched_one || log_descriptor < 0)
        return offset < 0 ? syscall(SYS_write, descriptor, from, length)
                          : syscall(SYS_pwrite64, descriptor, from, length, offset);
    LOCKED(done = offset < 0 ? syscall(SYS_write, descriptor, from, length)
                             : syscall(SYS_pwrite64, descriptor, from, length, offset), {
        if (done > 0) {
            off64_t at = offset < 0 ? syscall(SYS_lseek, descriptor, 0, SEEK_CUR) - done : offset;
            note(WRITTEN, inode_of(descriptor), at, NULL, NULL, from, done);
        }
    });
    return done;
}

ssize_t write(int descriptor, const void *from, size_t length) { return write_at(descriptor, from, length, -1); }
ssize_t pwrite(int descriptor, const void *from, size_t length, off_t offset) {
    return write_at(descriptor, from, length, offset);
}
ssize_t pwrite64(int descriptor, const void *from, size_t length, off64_t offset) {
    return write_at(descriptor, from, length, offset);
}

static int truncate_to(int descriptor, off64_t length) {
    if (!minds(descriptor)) return syscall(SYS_ftruncate, descriptor, length);
    CHANGE(TRUNCATE);
    int failed;
    LOCKED(failed = syscall(SYS_ftruncate, descriptor, length),
           if (!failed) note(TRUNCATED, inode_of(descriptor), length, NULL, NULL, NULL, 0));
    return failed;
}
int ftruncate(int descriptor, off_t length) { return truncate_to(descriptor, length); }
int ftruncate64(int descriptor, off64_t length) { return truncate_to(descriptor, length); }

static int allocate(int descriptor, off64_t offset, off64_t length) {
    if (minds(descriptor)) {
        int why = read_only ? EROFS : refused(TRUNCATE);
        if (why > 0) return why; /* posix_fallocate returns its error */
    }
    int failed = 0;
    LOCKED(if (syscall(SYS_fallocate, descriptor, 0, offset, length)) failed = errno, {
        struct stat status;
        if (!failed && minds(descriptor) && !fstat(descriptor, &status))
            note(TRUNCATED, status.st_ino, status.st_size, NULL, NULL, NULL, 0);
    });
    return failed;
}
int posix_fallocate(int descriptor, off_t offset, off_t length) { return allocate(descriptor, offset, length); }
int posix_fallocate64(int descriptor, off64_t offset, off64_t length) { return allocate(descriptor, offset, length); }

static int sync_file(int descriptor, long how) {
    if (!minds(descriptor)) return syscall(how, descriptor);
    REFUSE(SYNC);
    int failed;
    LOCKED(failed = syscall(how, descriptor),
           if (!failed) note(SYNCED, inode_of(descriptor), 0, NULL, NULL, NULL, 0));
    return failed;
}
int fsync(int descriptor) { return sync_file(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_file(descriptor, SYS_fdatasync); }

static int control(int descriptor, int command, void *argument) {
    int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
    if (locks && ((struct flock *)argument)->l_type != F_UNLCK && minds(descriptor)) REFUSE(LOCK);
    return syscall(SYS_fcntl, descriptor, command, argument);
}

#define ARGUMENT(last)                      \
    va_list rest;                           \
    va_start(rest, last);                   \
    void *argument = va_arg(rest, void *);  \
    va_end(rest);

int fcntl(int descriptor, int command, ...) { ARGUMENT(command) return control(descriptor, command, argument); }
int fcntl64(int descriptor, int command, ...) { ARGUMENT(command) return control(descriptor, command, argument); }

int flock(int descriptor, int operation) {
    if (!(operation & LOCK_UN) && minds(descriptor)) REFUSE(LOCK);
    return syscall(SYS_flock, descriptor, operation);
}

/* SQLite waits this way for locks. While all are refused nothing comes of it, and it would take ten seconds a call. */
int usleep(useconds_t length) {
    struct timespec span = {length / 1000000, length % 1000000 * 1000};
    if (refusal[LOCK].at && refusal[LOCK].sticky) return 0;
    return syscall(SYS_nanosleep, &span, NULL);
}

static void *map(void *at, size_t length, int protection, int flags, int descriptor, off64_t offset) {
    if (!(flags & MAP_ANONYMOUS) && minds(descriptor)) {
        int why = refused(MAP);
        if (why > 0) {
            errno = why;
            return MAP_FAILED;
        }
    }
    return (void *)syscall(SYS_mmap, at, length, protection, flags, descriptor, offset);
}
void *mmap(void *at, size_t length, int protection, int flags, int descriptor, off_t offset) {
    return map(at, length, protection, flags, descriptor, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int descriptor, off64_t offset) {
    return map(at, length, protection, flags, descriptor, offset);
}

int unlinkat(int directory, const char *name, int flags) {
    char path[PATH_MAX];
    if (!locate(directory, name, path)) return syscall(SYS_unlinkat, directory, name, flags);
    CHANGE(UNLINK);
    int failed;
    LOCKED(failed = syscall(SYS_unlinkat, directory, name, flags),
           if (!failed) note(flags & AT_REMOVEDIR ? REMOVED : UNLINKED, 0, 0, path, NULL, NULL, 0));
    return failed;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    char first[PATH_MAX], second[PATH_MAX];
    int watched_one = locate(from_directory, from, first) | locate(to_directory, to, second);
    if (!watched_one) return syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    CHANGE(RENAME);
    int failed;
    LOCKED(failed = syscall(SYS_renameat2, from_directory, from, to_directory, to, flags),
           if (!failed) note(RENAMED, 0, flags, first, second, NULL, 0));
    return failed;
}
int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return renameat2(from_directory, from, to_directory, to, 0);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int directory, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!locate(directory, name, path)) return syscall(SYS_mkdirat, directory, name, mode);
    CHANGE(MKDIR);
    int failed;
    LOCKED(failed = syscall(SYS_mkdirat, directory, name, mode), {
        struct stat status;
        if (!failed && !fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW))
            note(MADE, status.st_ino, 0, path, NULL, NULL, 0);
    });
    return failed;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    char path[PATH_MAX];
    if (!locate(to_directory, to, path)) return syscall(SYS_linkat, from_directory, from, to_directory, to, flags);
    CHANGE(LINK);
    int failed;
    LOCKED(failed = syscall(SYS_linkat, from_directory, from, to_directory, to, flags), {
        struct stat status;
        if (!failed && !fstatat(to_directory, to, &status, AT_SYMLINK_NOFOLLOW))
            note(LINKED, status.st_ino, 0, path, NULL, NULL, 0);
    });
    return failed;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
