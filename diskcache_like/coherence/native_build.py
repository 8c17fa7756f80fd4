"""Build the optional C helper: ordered and atomic access to mapped words, and futex waits.

`setup.py` compiles it if it can; `python diskcache_like/coherence/native_build.py` puts it beside this file. On x86-64
nothing needs it: there it only shortens the wait for a contended write lock.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from cffi import FFI

MODULE = "diskcache_like.coherence._native"

DECLARATIONS = """
#define DL_ABI ...
uint64_t dl_load(void *words, size_t index);
void dl_store(void *words, size_t index, uint64_t value);
uint64_t dl_add(void *words, size_t index, uint64_t amount);
void dl_fill(void *words, size_t length, uint64_t value);
int dl_futex_wait(void *words, size_t index, uint32_t expected, long timeout_us);
int dl_futex_wake(void *words, size_t index, int waiters);
"""

SOURCE = r"""
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

/* Increased whenever a function changes its meaning: native.py refuses a helper left over from another version. */
#define DL_ABI 1

#if UINTPTR_MAX < 0xFFFFFFFFFFFFFFFFu
#error "the helper promises single-copy atomic 64-bit words, which this platform does not have"
#endif

/* A reader loads a generation, reads the database, and loads the generation again. Acquire alone would let the second
   load move up before the reads of the database; the fence in front of it forbids that. */
static uint64_t dl_load(void *words, size_t index)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n((uint64_t *)words + index, __ATOMIC_ACQUIRE);
}

/* A writer stores odd, commits, and stores even. Release keeps the commit before even; the fence after the store keeps
   odd before the commit. */
static void dl_store(void *words, size_t index, uint64_t value)
{
    __atomic_store_n((uint64_t *)words + index, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static uint64_t dl_add(void *words, size_t index, uint64_t amount)
{
    return __atomic_fetch_add((uint64_t *)words + index, amount, __ATOMIC_SEQ_CST);
}

static void dl_fill(void *words, size_t length, uint64_t value)
{
    size_t index;
    for (index = 0; index < length; index++)
        __atomic_store_n((uint64_t *)words + index, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#if defined(__linux__) && defined(SYS_futex)

/* The kernel's numbers, which never change. The header that names them, <linux/futex.h>, does not come with musl. */
#define DL_FUTEX_WAIT 0
#define DL_FUTEX_WAKE 1

/* The kernel compares 32 bits: the low half of the word, wherever the byte order places it. */
static uint32_t *dl_low_half(void *words, size_t index)
{
    uint32_t *halves = (uint32_t *)((uint64_t *)words + index);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return halves + 1;
#else
    return halves;
#endif
}

/* Not FUTEX_PRIVATE, because the word lies in a file that several processes map. Returns 0 or an errno value. */
static int dl_futex_wait(void *words, size_t index, uint32_t expected, long timeout_us)
{
    struct timespec timeout;
    timeout.tv_sec = timeout_us / 1000000;
    timeout.tv_nsec = (timeout_us % 1000000) * 1000;
    if (syscall(SYS_futex, dl_low_half(words, index), DL_FUTEX_WAIT, expected, &timeout, NULL, 0) == 0)
        return 0;
    return errno;
}

static int dl_futex_wake(void *words, size_t index, int waiters)
{
    if (syscall(SYS_futex, dl_low_half(words, index), DL_FUTEX_WAKE, waiters, NULL, NULL, 0) >= 0)
        return 0;
    return errno;
}

#else

static int dl_futex_wait(void *words, size_t index, uint32_t expected, long timeout_us)
{
    (void)words; (void)index; (void)expected; (void)timeout_us;
    return ENOSYS;
}

static int dl_futex_wake(void *words, size_t index, int waiters)
{
    (void)words; (void)index; (void)waiters;
    return ENOSYS;
}

#endif
"""

ffibuilder = FFI()
ffibuilder.cdef(DECLARATIONS)
ffibuilder.set_source(MODULE, SOURCE)


def build_in_place() -> Path:
    """Compile the helper and put the shared library, but no C or object file, beside this file."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(ffibuilder.compile(tmpdir=scratch))
        # Copied under another name and then renamed: a process that has mapped the old library must not see it change.
        target = Path(__file__).resolve().parent / built.name
        fresh = target.with_name(target.name + ".new")
        shutil.copyfile(built, fresh)
        fresh.replace(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{build_in_place()}\n")
