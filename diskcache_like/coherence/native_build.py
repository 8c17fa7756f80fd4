"""Build the optional C helper: ordered and atomic access to mapped words, futex waits, and appends to the write buffer.

`setup.py` compiles it if it can; `python diskcache_like/coherence/native_build.py` puts it beside this file. On x86-64
nothing needs it: there it shortens the wait for a contended write lock, and small writes into a write buffer.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from cffi import FFI

MODULE = "diskcache_like.coherence._native"

# What a call on the write buffer is given, and what it finds; cffi and the C compiler read the same text.
STRUCTURES = """
typedef struct {
    uint64_t *tick, *settled, *epoch, *buffer, *cross_shard, *written, *volume_due, *limit, *claim, *waiters, *wake;
    uint64_t *slots;
    uint64_t slot_prime;
    uint64_t *reserved, *last, *head, *done, *flushed, *flushed_last, *floor;
    uint64_t *table;
    uint64_t table_prime;
    char *content;
    uint64_t capacity;
    uint64_t known_epoch, known_buffer, known_limit, tick_limit, due_limit, bound, longest;
    unsigned int longest_walk;
    int lock;
} dl_shard;

typedef struct {
    uint64_t offset, first; /* of the newest record of a key, and the tick of the write that made its entry */
    int was_removed;
} dl_newest;
"""

DECLARATIONS = f"""{STRUCTURES}
#define DL_ABI ...
uint64_t dl_load(void *words, size_t index);
void dl_store(void *words, size_t index, uint64_t value);
uint64_t dl_add(void *words, size_t index, uint64_t amount);
void dl_fill(void *words, size_t length, uint64_t value);
int dl_futex_wait(void *words, size_t index, uint32_t expected, long timeout_us);
int dl_futex_wake(void *words, size_t index, int waiters);

void dl_prepare(void);
long dl_gather(const dl_shard *shard, dl_newest *found, size_t room, uint64_t *end, uint64_t *last);
uint64_t dl_append(const dl_shard *shard, uint64_t h, uint64_t expected, const char *body, size_t size,
                   unsigned int key_size, int kind, int original_size, int tags_size, double expire, double fresh);
"""

SOURCE = r"""
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

/* Increased whenever a function changes its meaning: native.py refuses a helper left over from another version. */
#define DL_ABI 6

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

/* -- the write buffer -- */
"""

SOURCE += (
    STRUCTURES
    + r"""
/* What stands before the content of a record, as `_HEADER` of ring.py spells it; without gaps. */
typedef struct {
    uint64_t offset, tick, h, previous;
    uint32_t key_size;
    uint8_t walk, kind, gap[2];
    uint32_t v_size;
    int32_t original_size, tags_size;
    uint32_t expire[2], fresh[2];
    uint32_t body_check, last, check;
} dl_header;

typedef char dl_header_has_no_gaps[sizeof(dl_header) == 80 ? 1 : -1];

static uint32_t dl_crc_table[8][256];

/* CRC-32 as zlib's, eight bytes at a time (M. Kounavis and F. Berry, "A systematic approach to building high
   performance software-based CRC generators", ISCC 2005). */
static void dl_prepare(void)
{
    uint32_t index, bit, step;
    for (index = 0; index < 256; index++) {
        uint32_t value = index;
        for (bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1)));
        dl_crc_table[0][index] = value;
    }
    for (index = 0; index < 256; index++)
        for (step = 1; step < 8; step++) {
            uint32_t before = dl_crc_table[step - 1][index];
            dl_crc_table[step][index] = (before >> 8) ^ dl_crc_table[0][before & 0xFF];
        }
}

static uint32_t dl_crc32(const void *content, size_t size)
{
    const uint8_t *bytes = content;
    uint32_t check = 0xFFFFFFFFu, one, other;
    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&one, bytes, 4);
        memcpy(&other, bytes + 4, 4);
        one ^= check;
        check = dl_crc_table[7][one & 0xFF] ^ dl_crc_table[6][one >> 8 & 0xFF] ^ dl_crc_table[5][one >> 16 & 0xFF]
            ^ dl_crc_table[4][one >> 24] ^ dl_crc_table[3][other & 0xFF] ^ dl_crc_table[2][other >> 8 & 0xFF]
            ^ dl_crc_table[1][other >> 16 & 0xFF] ^ dl_crc_table[0][other >> 24];
    }
    for (; size; size--, bytes++)
        check = (check >> 8) ^ dl_crc_table[0][(check ^ *bytes) & 0xFF];
    return ~check;
}

static uint64_t dl_get(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void dl_put(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* nor do later stores come before it */
}

/* Append a record under the lock, in the order that ring.py and write_buffer.py argue for; return the slot's new
   generation. Return 0, with nothing changed, wherever Python would do anything besides: it then does that. */
static uint64_t dl_append_locked(const dl_shard *shard, uint64_t expected, const char *body, size_t size,
                                 dl_header header)
{
    uint64_t head = dl_get(shard->head), last = dl_get(shard->last), floor = dl_get(shard->floor);
    uint64_t flushed = dl_get(shard->flushed), tick = dl_get(shard->tick), written = dl_get(shard->written);
    uint64_t due = dl_get(shard->volume_due), capacity = shard->capacity;
    uint64_t total = sizeof header + size, start = head, place = head % capacity, end;
    uint64_t *slot = shard->slots + header.h % shard->slot_prime, *entry = shard->table + header.h % shard->table_prime;
    const char *key = body;
    if (dl_get(shard->settled) != tick || tick >= shard->tick_limit || dl_get(shard->cross_shard)
        || dl_get(shard->epoch) != shard->known_epoch || dl_get(shard->buffer) != shard->known_buffer
        || dl_get(shard->limit) > shard->known_limit)
        return 0;
    if (expected && dl_get(slot) != expected)
        return 0;
    if (due < written || due - written > shard->due_limit || floor >= head || head - flushed > shard->bound
        || dl_get(shard->done) != head || ((last ^ head) & 0xFFFFFFFFu))
        return 0;
    if (floor > flushed || floor < capacity || dl_get(shard->reserved) - head > capacity)
        return 0; /* the words are damaged */
    if (capacity - place < total + 7) {
        start += capacity - place;
        place = 0;
    }
    end = start + ((total + 7) & ~(uint64_t)7);
    if (end - flushed > capacity || end < flushed)
        return 0;
    header.previous = dl_get(entry);
    header.walk = 1;
    if (header.previous >= head)
        return 0; /* the table is damaged */
    if (header.previous >= floor && header.previous + capacity >= end) {
        dl_header before;
        uint64_t where = header.previous % capacity;
        if (where + sizeof before > capacity)
            return 0;
        memcpy(&before, shard->content + where, sizeof before);
        if (before.offset != header.previous || before.check != dl_crc32(&before, sizeof before - 4))
            return 0;
        if (before.key_size == header.key_size && where + sizeof before + before.key_size <= capacity
            && !memcmp(shard->content + where + sizeof before, key, header.key_size)) {
            header.previous = before.previous;
            header.walk = before.walk;
        } else if (before.walk >= shard->longest_walk)
            return 0;
        else
            header.walk = before.walk + 1;
    }
    tick++;
    header.offset = start;
    header.tick = tick;
    header.last = (uint32_t)(last >> 32);
    header.check = dl_crc32(&header, sizeof header - 4);
    dl_put(shard->tick, tick);
    dl_put(slot, 2 * tick + 1);
    if (end > dl_get(shard->reserved))
        dl_put(shard->reserved, end);
    if (start != head) /* whoever looks for a record at HEAD must not find what lay there before */
        memset(shard->content + head % capacity, 0, sizeof header.offset);
    memcpy(shard->content + place + sizeof header, body, size);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* a header says that the content is there */
    memcpy(shard->content + place, &header, sizeof header);
    dl_put(shard->last, (uint64_t)header.check << 32 | (end & 0xFFFFFFFFu));
    dl_put(shard->head, end);
    dl_put(entry, start);
    dl_put(shard->done, end);
    dl_put(slot, 2 * tick + 2);
    dl_put(shard->settled, tick);
    return 2 * tick + 2;
}

/* Take the write lock if it is free, append, and release it; the caller keeps the threads of this process out. */
static uint64_t dl_append(const dl_shard *shard, uint64_t h, uint64_t expected, const char *body, size_t size,
                          unsigned int key_size, int kind, int original_size, int tags_size, double expire,
                          double fresh)
{
    dl_header header;
    uint64_t stamp;
    size_t others = key_size + (original_size > 0 ? original_size : 0) + (tags_size > 0 ? tags_size : 0);
    memset(&header, 0, sizeof header);
    header.h = h;
    header.key_size = key_size;
    header.kind = (uint8_t)kind;
    header.v_size = (uint32_t)(size - others);
    header.original_size = original_size;
    header.tags_size = tags_size;
    memcpy(header.expire, &expire, sizeof expire);
    memcpy(header.fresh, &fresh, sizeof fresh);
    header.body_check = dl_crc32(body, size);
    if (size > shard->longest || key_size > size || others > size)
        return 0;
    if (dl_get(shard->claim) || flock(shard->lock, LOCK_EX | LOCK_NB))
        return 0;
    stamp = dl_append_locked(shard, expected, body, size, header);
    flock(shard->lock, LOCK_UN);
    if (dl_get(shard->waiters)) { /* as in write_lock.py, which says why nobody is missed */
        dl_put(shard->waiters, 0);
        __atomic_fetch_add(shard->wake, 1, __ATOMIC_SEQ_CST);
        dl_futex_wake(shard->wake, 0, 1);
    }
    return stamp;
}

/* Find the newest record of each key that waits, up to `room` keys, and where that ends; return how many there are.
   Return -1 for any damage: Python then looks closer. The lock is held. */
static long dl_gather(const dl_shard *shard, dl_newest *found, size_t room, uint64_t *end, uint64_t *last)
{
    uint64_t head = dl_get(shard->head), offset = dl_get(shard->flushed), capacity = shard->capacity;
    size_t count = 0, slots = 16, slot, index;
    uint32_t *table, check = (uint32_t)(dl_get(shard->flushed_last) >> 32);
    if (dl_get(shard->done) != head || head < offset || head - offset > capacity || !room || room > 1u << 24)
        return -1;
    while (slots < 2 * room)
        slots *= 2;
    table = calloc(slots, sizeof *table); /* one more than the index in `found`, 0 for none */
    if (!table)
        return -1;
    while (offset < head) {
        dl_header header;
        uint64_t place = offset % capacity, total;
        const char *key;
        if (place + sizeof header <= capacity)
            memcpy(&header, shard->content + place, sizeof header);
        if (place + sizeof header > capacity || header.offset != offset) {
            offset += capacity - place;
            place = 0;
            memcpy(&header, shard->content, sizeof header);
        }
        total = sizeof header + (uint64_t)header.key_size + header.v_size;
        total += (header.original_size > 0 ? header.original_size : 0) + (header.tags_size > 0 ? header.tags_size : 0);
        if (header.offset != offset || header.last != check || offset >= head || total > capacity - place
            || offset + total > head
            || header.check != dl_crc32(&header, sizeof header - 4)
            || header.body_check != dl_crc32(shard->content + place + sizeof header, total - sizeof header))
            goto damaged;
        key = shard->content + place + sizeof header;
        for (slot = (header.h * 0x9E3779B97F4A7C15u >> 32) & (slots - 1);; slot = (slot + 1) & (slots - 1)) {
            dl_header other;
            uint64_t where;
            if (!table[slot])
                break;
            where = found[table[slot] - 1].offset % capacity;
            memcpy(&other, shard->content + where, sizeof other);
            if (other.h == header.h && other.key_size == header.key_size
                && where + sizeof other + other.key_size <= capacity /* others may change it meanwhile */
                && !memcmp(shard->content + where + sizeof other, key, header.key_size)) {
                dl_newest *newest = found + table[slot] - 1;
                if (other.kind == 0) /* a removal */
                    newest->first = header.tick;
                newest->was_removed |= header.kind == 0;
                newest->offset = offset;
                goto next;
            }
        }
        if (count == room)
            break;
        index = count++;
        table[slot] = (uint32_t)index + 1;
        found[index].offset = offset;
        found[index].first = header.tick;
        found[index].was_removed = header.kind == 0;
    next:
        offset += (total + 7) & ~(uint64_t)7;
        *end = offset;
        *last = check = header.check;
    }
    free(table);
    return (long)count;
damaged:
    free(table);
    return -1;
}
"""
)

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
