/* The write lock of a shard: one holder at a time, among the threads of this process and among processes.

   `owner` keeps the threads apart that share the descriptor, and flock the processes. The kernel drops a flock when its
   holder dies, however it dies, and there is no list of waiters that a dead process could clog. */

#define _GNU_SOURCE /* syscall */
#include "_core.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* Attempts before the first sleep. The spins take about 50 microseconds together, which is how long a small write holds
   the lock. A holder that takes longer has most likely lost its processor, so the next attempts each yield ours first;
   they cost little more than going to sleep and being woken. After a sleep neither is repeated: that would keep the
   processor from the holder. */
#define SPINS 50
#define YIELDS 50

/* Microseconds of a sleep, twice as long each time, up to the longest. A release ends it. The slices only bound the
   delay when a wake-up is lost, because it went to a process that was killed before it could use it or pass it on. */
#define FIRST_SLICE 1000
#define LONGEST_SLICE 20000

/* The longest sleep where the system can wake nobody. */
#define LONGEST_PAUSE 1000

/* Microseconds of waiting after which a waiter makes a claim, and for which a newcomer sleeps at most before its first
   attempt. Long compared to the time that a write holds the lock, because sleeping costs context switches. */
#define PATIENCE 20000

/* Microseconds for which a claim outlives its claimant's sleep, so that it still stands if the lock is released just
   before the sleep ends. If the claimant is killed, this is also what each newcomer loses at most. */
#define GRACE 10000

/* -- sleeping until a word changes -- */

#if defined(__linux__) && defined(SYS_futex)

/* The kernel's numbers, which never change. The header that names them, <linux/futex.h>, does not come with musl. */
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1

/* The kernel compares 32 bits: the low half of the word, wherever the byte order places it. */
static uint32_t *low_half(uint64_t *word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint32_t *)word + 1;
#else
    return (uint32_t *)word;
#endif
}

/* Not FUTEX_PRIVATE, because the word lies in a file that several processes map. Returns 0 or an errno value. */
int dl_futex_wait(uint64_t *word, uint32_t expected, long timeout_us)
{
    struct timespec timeout;
    timeout.tv_sec = timeout_us / 1000000;
    timeout.tv_nsec = (timeout_us % 1000000) * 1000;
    return syscall(SYS_futex, low_half(word), FUTEX_WAIT, expected, &timeout, NULL, 0) ? errno : 0;
}

int dl_futex_wake(uint64_t *word, int waiters)
{
    return syscall(SYS_futex, low_half(word), FUTEX_WAKE, waiters, NULL, NULL, 0) < 0 ? errno : 0;
}

#else

int dl_futex_wait(uint64_t *word, uint32_t expected, long timeout_us)
{
    (void)word, (void)expected, (void)timeout_us;
    return ENOSYS;
}

int dl_futex_wake(uint64_t *word, int waiters)
{
    (void)word, (void)waiters;
    return ENOSYS;
}

#endif

uint64_t dl_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* -- taking it, and giving it back -- */

/* Keep the other threads of this process out; tell whether that could be done at once. */
int dl_enter(dl_lock *lock, uint64_t me)
{
    uint64_t nobody = 0;
    return __atomic_compare_exchange_n(&lock->owner, &nobody, me, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

void dl_leave(dl_lock *lock)
{
    __atomic_store_n(&lock->owner, 0, __ATOMIC_RELEASE);
}

/* Take the lock if it is free. A thread that failed leaves at once, so that another one may try. */
enum dl_locked dl_try_lock(dl_lock *lock, uint64_t me)
{
    int error;
    if (!dl_enter(lock, me))
        return __atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) == me ? DL_HELD : DL_BUSY;
    if (lock->descriptor >= 0 && !flock(lock->descriptor, LOCK_EX | LOCK_NB))
        return DL_TAKEN;
    error = lock->descriptor < 0 ? EBADF : errno;
    dl_leave(lock);
    errno = error;
    return error == EWOULDBLOCK || error == EINTR ? DL_BUSY : DL_FAILED;
}

/* Why no wake-up is missed. WAITERS is a flag: "somebody may be asleep". A waiter reads WAKE, raises the flag, tries the
   lock, and sleeps only as long as WAKE is what it read. A releaser drops the lock; if the flag is up, it lowers the
   flag, changes WAKE and wakes one waiter.
   * The waiter's attempt fails before the releaser drops the lock: the kernel, or `owner`, orders the two, so the
     releaser sees the flag (or another releaser saw and lowered it), and WAKE changes after the waiter read it: no sleep.
   * A releaser lowers the flag just after a waiter raised it: the releaser changes WAKE after that, and the waiter read
     WAKE before it raised the flag, so again it does not sleep.
   * One of many waiters is woken: it raises the flag again before its attempt, so the chain continues whether it gets
     the lock or not. A waiter that gets the lock leaves the flag up; if nobody else waits, that costs one useless
     wake-up.
   * A waiter is killed. In its sleep: it leaves at most a raised flag, which the next release lowers; there is no count
     that could be wrong. Just after it was woken: the wake-up is lost, so the others sleep to the end of their slice and
     then try.
   WAKE is incremented atomically because two releasers can be here at once, each having dropped the lock already. */
static void wake(dl_lock *lock, int waiters)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the lock is dropped before the flag is read, on every CPU */
    if (dl_load(lock->words + DL_WAITERS)) {
        dl_store(lock->words + DL_WAITERS, 0);
        __atomic_fetch_add(lock->words + DL_WAKE, 1, __ATOMIC_SEQ_CST);
        dl_futex_wake(lock->words + DL_WAKE, waiters);
    }
}

void dl_unlock(dl_lock *lock)
{
    if (lock->descriptor >= 0)
        flock(lock->descriptor, LOCK_UN); /* first: afterwards another thread uses the descriptor */
    dl_leave(lock);
    wake(lock, 1);
}

/* Close the descriptor; threads that wait find the lock closed, not free. `unlocks`: this process holds it, not one that
   it was forked from. */
void dl_close(dl_lock *lock, int unlocks)
{
    int descriptor = lock->descriptor;
    lock->descriptor = -1;
    if (descriptor >= 0 && unlocks)
        flock(descriptor, LOCK_UN); /* closing is not enough: a child made by a fork from C keeps the lock open */
    dl_leave(lock);
    wake(lock, INT_MAX);
    if (descriptor >= 0)
        close(descriptor);
}

/* -- waiting -- */

static int slept(const dl_wait *wait, uint64_t seen, uint64_t microseconds)
{
    int error = dl_futex_wait(wait->words + DL_WAKE, (uint32_t)seen, (long)microseconds);
    if (error == ENOSYS) {
        usleep((useconds_t)(microseconds < LONGEST_PAUSE ? microseconds : LONGEST_PAUSE));
        return ETIMEDOUT;
    }
    return error;
}

static uint64_t flag_waiter(const dl_wait *wait)
{
    uint64_t seen = dl_load(wait->words + DL_WAKE);
    dl_store(wait->words + DL_WAITERS, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the flag is up before the lock is tried, on every CPU */
    return seen;
}

/* Why nobody starves. A holder that releases the lock and takes it again at once always beats a waiter that must be
   woken first. So after PATIENCE a waiter makes a fairness claim: it writes into FAIRNESS_CLAIM the time until which
   newcomers must queue, and renews the claim before each sleep. A newcomer then sleeps before its first attempt, for at
   most PATIENCE, until it is woken as one of the waiters, in the order in which they fell asleep. The word is a hint that
   can only delay: of two claims at once, one is lost until the next sleep; the claim of a killed process runs out; and a
   value left by damage, or by the clock of another time namespace, counts only if it ends soon. Waiting threads claim as
   processes do: they try without the interpreter's lock, so that one which keeps taking that cannot keep them out. */

int dl_is_claimed(const uint64_t *words)
{
    return dl_load(words + DL_CLAIM) != 0;
}

/* Sleep while a claim of another waiter stands; return 0 if a signal came. */
static int queued(dl_wait *wait)
{
    uint64_t now = wait->started, end = wait->started + PATIENCE;
    if (wait->deadline < end)
        end = wait->deadline;
    while (now < end) {
        uint64_t seen = flag_waiter(wait), claim = dl_load(wait->words + DL_CLAIM);
        int error;
        if (claim <= now || claim - now > LONGEST_SLICE + GRACE) {
            dl_store(wait->words + DL_CLAIM, 0); /* so that the next newcomer need not look at the clock */
            break;
        }
        error = slept(wait, seen, (claim < end ? claim : end) - now);
        if (error == EINTR)
            return 0;
        if (error != ETIMEDOUT) {
            flag_waiter(wait); /* for those who sleep behind this one */
            break;
        }
        now = dl_now();
    }
    return 1;
}

static enum dl_locked impatient(dl_lock *lock, uint64_t me, dl_wait *wait)
{
    enum dl_locked outcome = DL_BUSY;
    int attempt;
    for (attempt = 0; outcome == DL_BUSY && attempt < SPINS; attempt++)
        outcome = dl_try_lock(lock, me);
    for (attempt = 0; outcome == DL_BUSY && attempt < YIELDS; attempt++) {
        uint64_t now;
        sched_yield();
        outcome = dl_try_lock(lock, me);
        now = dl_now(); /* others may keep the processor for long: then make a claim */
        if (now >= wait->deadline || now - wait->started >= PATIENCE)
            break;
    }
    wait->slice = FIRST_SLICE;
    return outcome;
}

/* End a wait for the lock. */
void dl_withdraw_claim(const dl_wait *wait)
{
    if (wait->claim && dl_load(wait->words + DL_CLAIM) == wait->claim) /* else another one has made a claim since */
        dl_store(wait->words + DL_CLAIM, 0);
}

/* Wait for the lock until the deadline. DL_INTERRUPTED: a signal came, or the longest slice has passed, and nothing is
   held; to be called again with the same `wait`, once signal handlers have run and nobody has given the wait up. */
enum dl_locked dl_wait_for_lock(dl_lock *lock, uint64_t me, dl_wait *wait)
{
    enum dl_locked outcome = DL_BUSY;
    if (!wait->has_queued && dl_is_claimed(wait->words) && !queued(wait))
        return DL_INTERRUPTED;
    wait->has_queued = 1;
    if (!wait->slice)
        outcome = impatient(lock, me, wait);
    while (outcome == DL_BUSY) {
        uint64_t seen = flag_waiter(wait), now, slice = wait->slice;
        outcome = dl_try_lock(lock, me);
        now = dl_now();
        if (outcome != DL_BUSY || now >= wait->deadline)
            break;
        if (slice > wait->deadline - now)
            slice = wait->deadline - now;
        if (now - wait->started >= PATIENCE)
            dl_store(wait->words + DL_CLAIM, wait->claim = now + slice + GRACE);
        if (slept(wait, seen, slice) == EINTR || slice == LONGEST_SLICE)
            return DL_INTERRUPTED;
        wait->slice = 2 * wait->slice < LONGEST_SLICE ? 2 * wait->slice : LONGEST_SLICE;
    }
    dl_withdraw_claim(wait);
    return outcome;
}
