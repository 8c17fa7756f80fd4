/* What the core of the coherence layer knows: mapped words, the ring of the write buffer, the write lock, and appends.

   No Python in here: `_types.h` and the files that include it give it to Python. */

#ifndef DISKCACHE_LIKE_CORE_H
#define DISKCACHE_LIKE_CORE_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX < 0xFFFFFFFFFFFFFFFFu
#error "diskcache_like needs single-copy atomic 64-bit words, which this platform does not have"
#endif

/* -- words -- */

/* A reader loads a generation, reads the database, and loads the generation again. Acquire alone would let the second
   load move up before the reads of the database; the fence in front of it forbids that. */
static inline uint64_t dl_load(const uint64_t *word)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* A writer stores odd, commits, and stores even. Release keeps the commit before even; the fence after the store keeps
   odd before the commit. On x86-64 nothing but a later load can overtake the store, and that ends at the next lock that
   COMMIT takes in the kernel: there the fence only binds the compiler, and a store takes a third less time. */
static inline void dl_store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#if defined(__x86_64__)
    __atomic_thread_fence(__ATOMIC_RELEASE);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Within one append the order of the stores is all that counts: no later store comes before this one. */
static inline void dl_put(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Words of a generation file's header; `Header` in generations.py says what each is, and who may change it. */
enum dl_header_word {
    DL_EPOCH = 4,
    DL_BUFFER = 13,
    DL_TICK = 16,
    DL_WRITTEN = 19,
    DL_VOLUME_DUE = 24,
    DL_COUNT = 25,
    DL_SETTLED = 26,
    DL_CROSS_SHARD = 31,
    DL_WAKE = 32,
    DL_WAITERS = 33,
    DL_CLAIM = 34,
    DL_EVICTED = 48,
    DL_LIMIT = 50,
    DL_MARKS = 53,
    DL_SINCE = 60
};

#define DL_LEAST_CELLS 2048 /* of marks and ghosts, in use where DL_MARKS is 0 */
#define DL_SPACES 64        /* that are counted apart (counts.py), */
#define DL_SPACE_COUNTERS 8 /* and the counters of each, the first of which is not used */

/* -- the ring -- */

/* Words of a ring's first page that change as it is used; `Ring` in ring.py knows the others. */
enum dl_ring_word {
    DL_RESERVED = 16,     /* offset up to which something may be overwritten just now */
    DL_LAST = 17,         /* checksum of the newest header, and the low half of the offset after its record */
    DL_HEAD = 18,         /* offset at which the next record begins */
    DL_FLUSHED = 20,      /* offset up to which the database has everything */
    DL_FLUSHED_LAST = 21, /* as LAST, for FLUSHED */
    DL_FLOOR = 22,        /* offset below which nothing is found */
    DL_CARRYING = 23      /* offset up to which a commit under way brings everything into the database; else 0 */
};

enum dl_kind { DL_REMOVAL, DL_RECORD, DL_ROW }; /* there is no entry, an entry without further columns, one with */

/* What stands before the content of a record: stored key, value, original key, tags. Without gaps. */
typedef struct {
    uint64_t offset, tick, home;
    uint64_t previous; /* offset of the record before it in its slot, of another key */
    uint64_t version;  /* the number of the write whose value it has; `tick` is its own, so no two are the same */
    uint32_t key_size;
    uint8_t walk; /* how many records a walk from here meets */
    uint8_t kind, gap[2];
    uint32_t value_size;
    int32_t original_size, tags_size; /* -1 for none */
    uint32_t expire[2], fresh[2];     /* doubles, NaN for none */
    uint32_t body_check;
    uint32_t last;  /* checksum of the header before this one */
    uint32_t check; /* of all of the above */
} dl_header;

typedef char dl_header_has_no_gaps[sizeof(dl_header) == 88 ? 1 : -1];

typedef struct {
    uint64_t *words, *table;
    char *content;
    uint64_t capacity, table_prime;
} dl_ring;

/* A place in the chain of records: the next one begins at `offset`, and names `last`. */
typedef struct {
    uint64_t offset;
    uint32_t last;
} dl_place;

#define DL_LONGEST_WALK 16
#define DL_FARTHEST ((uint64_t)1 << 62) /* offset that no ring comes to; what is beyond is damage */

enum dl_found { DL_NOTHING, DL_FOUND, DL_DAMAGED, DL_NO_MEMORY };

void dl_prepare(void);
uint32_t dl_crc32(uint32_t before, const void *content, size_t size); /* `before`: that of what precedes it, or 0 */

size_t dl_body_size(const dl_header *header);
int dl_has_whole_body(const dl_header *header, const char *body);
enum dl_found dl_next(const dl_ring *ring, uint64_t limit, dl_place *place, dl_header *header, const char **body);

int dl_is_sound(const dl_ring *ring);
int dl_plan(const dl_ring *ring, dl_header *header, const char *body);
void dl_write(const dl_ring *ring, dl_header *header, const char *body);
int dl_mend(const dl_ring *ring, const dl_place *flushed);
int dl_take_over(const dl_ring *ring, dl_place *place);
enum dl_found dl_find(const dl_ring *ring, uint64_t home, const char *key, size_t key_size, dl_header *header,
                      char **body);

/* -- the write lock -- */

typedef struct {
    int descriptor; /* that is locked; -1 once it is closed */
    uint64_t owner; /* thread of this process that has the lock, or is just trying; 0 for none */
    uint64_t *words; /* of a generation file's header, or, before there is one, of this process alone */
} dl_lock;

typedef struct {
    uint64_t *words;             /* of the lock as it was when the wait began; the caller keeps them mapped */
    uint64_t started, deadline; /* microseconds of the monotonic clock */
    uint64_t claim, slice;      /* the claim that was made, 0 for none; microseconds of the next sleep */
    int has_queued;
} dl_wait;

enum dl_locked { DL_TAKEN, DL_BUSY, DL_HELD, DL_FAILED, DL_INTERRUPTED };

int dl_futex_wait(uint64_t *word, uint32_t expected, long timeout_us);
int dl_futex_wake(uint64_t *word, int waiters);
uint64_t dl_now(void);
int dl_enter(dl_lock *lock, uint64_t me);
void dl_leave(dl_lock *lock);
int dl_is_claimed(const uint64_t *words);
enum dl_locked dl_try_lock(dl_lock *lock, uint64_t me);
enum dl_locked dl_wait_for_lock(dl_lock *lock, uint64_t me, dl_wait *wait);
void dl_withdraw_claim(const dl_wait *wait);
void dl_unlock(dl_lock *lock);
void dl_close(dl_lock *lock, int unlocks);

/* -- an append that takes the write lock itself -- */

typedef struct {
    uint64_t *header, *slots;
    const dl_ring *ring;
    uint64_t slot_prime;
    uint64_t known_epoch, known_buffer, limit; /* of the handle */
    uint64_t tick_limit;
    uint64_t due_limit, bound, longest; /* bytes: written until upkeep, waiting in the ring, of a record */
    uint64_t most; /* entries */
    dl_lock *lock;
} dl_shard;

enum dl_locked dl_append(const dl_shard *shard, uint64_t me, dl_header *header, const char *body, uint64_t expected,
                         uint64_t patience, uint64_t *stamp);

/* Called after each change of memory that others map, so that tests can stop a writer between any two; else NULL. */
extern void (*dl_on_step)(const char *changed);

#endif
