/* The ring of the write buffer, and appends to it. ring.py says what it promises, and what each word is for.

   Only the holder of the write lock changes anything, in this order: RESERVED, the content, the header, LAST, HEAD, the
   table. A holder that dies leaves SETTLED behind TICK, and the next one mends the ring before anything else.

   Sizes and offsets come from a file that others may have damaged or planted: each is compared with the capacity
   before memory is touched, in a copy of the header that nobody changes meanwhile. */

#include "_core.h"

#include <stdlib.h>
#include <string.h>

void (*dl_on_step)(const char *changed);

static void step(const char *changed)
{
    if (dl_on_step)
        dl_on_step(changed);
}

/* -- checksums -- */

static uint32_t crc_table[8][256];

/* CRC-32 as zlib's, eight bytes at a time (M. Kounavis and F. Berry, "A systematic approach to building high
   performance software-based CRC generators", ISCC 2005). */
void dl_prepare(void)
{
    uint32_t index, bit, step;
    for (index = 0; index < 256; index++) {
        uint32_t value = index;
        for (bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1)));
        crc_table[0][index] = value;
    }
    for (index = 0; index < 256; index++)
        for (step = 1; step < 8; step++) {
            uint32_t before = crc_table[step - 1][index];
            crc_table[step][index] = (before >> 8) ^ crc_table[0][before & 0xFF];
        }
}

uint32_t dl_crc32(uint32_t before, const void *content, size_t size)
{
    const uint8_t *bytes = content;
    uint32_t check = ~before, one, other;
    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&one, bytes, 4);
        memcpy(&other, bytes + 4, 4);
        one ^= check;
        check = crc_table[7][one & 0xFF] ^ crc_table[6][one >> 8 & 0xFF] ^ crc_table[5][one >> 16 & 0xFF]
            ^ crc_table[4][one >> 24] ^ crc_table[3][other & 0xFF] ^ crc_table[2][other >> 8 & 0xFF]
            ^ crc_table[1][other >> 16 & 0xFF] ^ crc_table[0][other >> 24];
    }
    for (; size; size--, bytes++)
        check = (check >> 8) ^ crc_table[0][(check ^ *bytes) & 0xFF];
    return ~check;
}

/* -- records -- */

/* A checksum and the offset that it belongs to, in one word so that both change at once. */
static uint64_t joined(dl_place place)
{
    return (uint64_t)place.last << 32 | (place.offset & 0xFFFFFFFFu);
}

static uint64_t *entry_of(const dl_ring *ring, uint64_t home)
{
    return ring->table + home % ring->table_prime;
}

static uint32_t check_of(const dl_header *header)
{
    return dl_crc32(0, header, sizeof *header - sizeof header->check);
}

size_t dl_body_size(const dl_header *header)
{
    size_t original = header->original_size > 0 ? (size_t)header->original_size : 0;
    return header->key_size + (size_t)header->value_size + original
        + (header->tags_size > 0 ? (size_t)header->tags_size : 0);
}

/* Bytes from one record to the next. */
static uint64_t size_of(const dl_header *header)
{
    return (sizeof *header + dl_body_size(header) + 7) & ~(uint64_t)7;
}

int dl_has_whole_body(const dl_header *header, const char *body)
{
    return dl_crc32(0, body, dl_body_size(header)) == header->body_check;
}

/* Copy the header at an offset; tell whether it is that of a record there, which lies within the ring. */
static int header_at(const dl_ring *ring, uint64_t offset, dl_header *header)
{
    uint64_t place = offset % ring->capacity;
    if (place + sizeof *header > ring->capacity)
        return 0;
    memcpy(header, ring->content + place, sizeof *header);
    return header->offset == offset && header->check == check_of(header) && place + size_of(header) <= ring->capacity;
}

/* Go on to the next record of the chain, which ends at `limit` at most; it may begin the next lap. */
enum dl_found dl_next(const dl_ring *ring, uint64_t limit, dl_place *place, dl_header *header, const char **body)
{
    if (!header_at(ring, place->offset, header)
        && !header_at(ring, place->offset + ring->capacity - place->offset % ring->capacity, header))
        return DL_NOTHING;
    if (header->last != place->last || header->offset + size_of(header) > limit)
        return DL_NOTHING;
    place->offset = header->offset + size_of(header);
    place->last = header->check;
    *body = ring->content + header->offset % ring->capacity + sizeof *header;
    return DL_FOUND;
}

/* -- writing: the lock is held -- */

/* Tell whether the words can be true beside each other. */
int dl_is_sound(const dl_ring *ring)
{
    const uint64_t *words = ring->words;
    uint64_t floor = dl_load(words + DL_FLOOR), flushed = dl_load(words + DL_FLUSHED);
    uint64_t head = dl_load(words + DL_HEAD), reserved = dl_load(words + DL_RESERVED);
    return !dl_load(words + DL_CARRYING) && ring->capacity <= floor && floor <= flushed && flushed <= head
        && head <= reserved && reserved < DL_FARTHEST
        && head - flushed <= ring->capacity && reserved - head <= ring->capacity
        && !((dl_load(words + DL_FLUSHED_LAST) ^ flushed) & 0xFFFFFFFFu)
        && !((dl_load(words + DL_LAST) ^ head) & 0xFFFFFFFFu);
}

/* Find the place and the links of the next record in a sound ring; return 0 if everything has to be flushed first, for
   want of room or of a short walk, or because the table or a record is damaged. */
int dl_plan(const dl_ring *ring, dl_header *header, const char *body)
{
    uint64_t head = dl_load(ring->words + DL_HEAD), flushed = dl_load(ring->words + DL_FLUSHED);
    uint64_t left = ring->capacity - head % ring->capacity, end;
    uint64_t size = sizeof *header + dl_body_size(header);
    dl_header before;
    header->offset = left < size + 7 ? head + left : head;
    end = header->offset + size_of(header);
    if (end - flushed > ring->capacity)
        return 0;
    header->last = (uint32_t)(dl_load(ring->words + DL_LAST) >> 32);
    header->previous = dl_load(entry_of(ring, header->home));
    header->walk = 1;
    if (header->previous < dl_load(ring->words + DL_FLOOR) || header->previous < end - ring->capacity)
        return 1;
    if (header->previous >= head || !header_at(ring, header->previous, &before)) {
        header->previous = 0; /* once all is flushed, nothing is hidden by a record that leads to no other */
        return flushed == head;
    }
    if (before.key_size == header->key_size
        && !memcmp(ring->content + before.offset % ring->capacity + sizeof before, body, header->key_size)) {
        header->previous = before.previous;
        header->walk = before.walk;
        return 1;
    }
    header->walk = before.walk + 1;
    return before.walk < DL_LONGEST_WALK;
}

/* Write a record that was planned; it counts once its header is whole, and its content is there by then. */
void dl_write(const dl_ring *ring, dl_header *header, const char *body)
{
    uint64_t *words = ring->words, head = dl_load(words + DL_HEAD), place = header->offset % ring->capacity;
    dl_place end = {header->offset + size_of(header), 0};
    end.last = header->check = check_of(header);
    if (end.offset > dl_load(words + DL_RESERVED))
        dl_put(words + DL_RESERVED, end.offset);
    step("RESERVED");
    if (header->offset != head) /* whoever looks for a record at HEAD must not find what lay there before */
        memset(ring->content + head % ring->capacity, 0, sizeof header->offset);
    memcpy(ring->content + place + sizeof *header, body, dl_body_size(header));
    step("content");
    __atomic_thread_fence(__ATOMIC_RELEASE); /* a header says that the content is there */
    memcpy(ring->content + place, header, sizeof *header - sizeof header->check);
    step("header");
    memcpy(ring->content + place + offsetof(dl_header, check), &header->check, sizeof header->check);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    step("whole header");
    dl_put(words + DL_LAST, joined(end));
    step("LAST");
    dl_put(words + DL_HEAD, end.offset);
    step("HEAD");
    dl_put(entry_of(ring, header->home), header->offset);
    step("table");
}

/* Finish the append or flush that a writer died in. Damaged content does not end the chain: it costs its key alone,
   since the next record follows the header. Return 0 for want of memory, with nothing changed. */
int dl_mend(const dl_ring *ring, const dl_place *flushed)
{
    uint64_t *words = ring->words, *newest = calloc(ring->table_prime, sizeof *newest), slot;
    uint64_t before = dl_load(words + DL_HEAD), limit = flushed->offset + ring->capacity;
    dl_place place = *flushed, next = place;
    dl_header header;
    const char *body;
    int is_whole;
    if (!newest)
        return 0;
    while (dl_next(ring, limit, &next, &header, &body)) {
        if (next.offset > before && !dl_has_whole_body(&header, body))
            break; /* a power loss left that, no writer */
        newest[header.home % ring->table_prime] = header.offset;
        place = next;
    }
    is_whole = place.offset >= before;
    if (!is_whole)
        place.offset = before; /* a damaged header ends the chain before it */
    dl_store(words + DL_FLUSHED, flushed->offset);
    step("FLUSHED");
    for (slot = 0; slot < ring->table_prime; slot++) {
        uint64_t now = dl_load(ring->table + slot);
        /* Readers must never be led to an older record, not even for a moment. */
        if (newest[slot] && (is_whole || now < newest[slot] || now >= place.offset)) {
            dl_store(ring->table + slot, newest[slot]);
            step("table");
        }
    }
    free(newest);
    if (dl_load(words + DL_RESERVED) < place.offset)
        dl_store(words + DL_RESERVED, place.offset);
    step("RESERVED");
    dl_store(words + DL_LAST, joined(place));
    step("LAST");
    dl_store(words + DL_HEAD, place.offset);
    step("HEAD");
    return 1;
}

/* Let the table lead to what follows a place, as far as the chain holds and its content is whole, and to nothing else;
   go on to the end of that. Return 0 for want of memory, with nothing changed. */
int dl_take_over(const dl_ring *ring, dl_place *place)
{
    uint64_t *table = calloc(ring->table_prime, sizeof *table), slot, limit = place->offset + ring->capacity;
    dl_place next = *place;
    dl_header header;
    const char *body;
    if (!table)
        return 0;
    while (dl_next(ring, limit, &next, &header, &body) && dl_has_whole_body(&header, body)) {
        table[header.home % ring->table_prime] = header.offset;
        *place = next;
    }
    for (slot = 0; slot < ring->table_prime; slot++) /* so readers never miss what waits, if only words were damaged */
        dl_store(ring->table + slot, table[slot]);
    step("table");
    free(table);
    return 1;
}

/* -- reading: without the lock -- */

/* Tell whether what was copied from an offset may be something newer. */
static int is_overwritten(const dl_ring *ring, uint64_t offset)
{
    uint64_t reserved = dl_load(ring->words + DL_RESERVED);
    return reserved > ring->capacity && reserved - ring->capacity > offset;
}

/* Find the newest record of a key, and copy its content into memory that the caller frees. DL_NOTHING means that the
   database has it: what is overwritten or below FLOOR is there. A record's own content is not compared with its
   checksum if the record alone tells (DL_RECORD): whoever unpacks it notices damage. */
enum dl_found dl_find(const dl_ring *ring, uint64_t home, const char *key, size_t key_size, dl_header *header,
                      char **body)
{
    uint64_t offset = dl_load(entry_of(ring, home));
    *body = NULL;
    while (offset && offset >= dl_load(ring->words + DL_FLOOR)) {
        uint64_t place = offset % ring->capacity;
        size_t size = 0;
        int is_whole = place + sizeof *header <= ring->capacity;
        if (is_whole)
            memcpy(header, ring->content + place, sizeof *header);
        if (is_overwritten(ring, offset))
            return DL_NOTHING;
        if (!is_whole || header->offset != offset || header->previous >= offset /* so that no walk is without an end */
            || header->home % ring->table_prime != home % ring->table_prime || header->check != check_of(header))
            return DL_DAMAGED;
        if (header->home != home || header->key_size != key_size) {
            offset = header->previous;
            continue;
        }
        size = dl_body_size(header);
        if (place + sizeof *header + size > ring->capacity)
            return DL_DAMAGED;
        *body = malloc(size + 1);
        if (!*body)
            return DL_NO_MEMORY;
        memcpy(*body, ring->content + place + sizeof *header, size);
        if (is_overwritten(ring, offset))
            return DL_NOTHING;
        is_whole = !memcmp(*body, key, key_size);
        if (is_whole && header->kind == DL_RECORD)
            return DL_FOUND;
        if (!dl_has_whole_body(header, *body))
            return DL_DAMAGED; /* may be this key's */
        if (is_whole)
            return DL_FOUND;
        free(*body);
        *body = NULL;
        offset = header->previous;
    }
    return DL_NOTHING;
}

/* -- an append that takes the write lock itself -- */

/* Tell whether one more entry may be one too many: each write since everything was flushed may have added one. */
static int may_be_full(const dl_shard *shard, uint64_t tick)
{
    uint64_t count = dl_load(shard->header + DL_COUNT);
    return shard->most != UINT64_MAX
        && (count >= shard->most || tick - dl_load(shard->header + DL_SINCE) >= shard->most - count);
}

/* Tell whether nothing but the append is due: what else may be, Python does. */
static int is_alone(const dl_shard *shard, uint64_t tick, uint64_t expected, const uint64_t *slot)
{
    const uint64_t *header = shard->header, *words = shard->ring->words;
    uint64_t written = dl_load(header + DL_WRITTEN), due = dl_load(header + DL_VOLUME_DUE);
    return dl_load(header + DL_SETTLED) == tick && tick < shard->tick_limit && !dl_load(header + DL_CROSS_SHARD)
        && dl_load(header + DL_EPOCH) == shard->known_epoch && dl_load(header + DL_BUFFER) == shard->known_buffer
        && dl_load(header + DL_LIMIT) <= shard->limit
        && (!expected || expected == (expected & 1 ? 2 * tick + 3 : dl_load(slot)))
        && written <= due && due - written <= shard->due_limit && dl_is_sound(shard->ring)
        && dl_load(words + DL_FLOOR) < dl_load(words + DL_HEAD)
        && dl_load(words + DL_HEAD) - dl_load(words + DL_FLUSHED) <= shard->bound && !may_be_full(shard, tick);
}

static uint64_t append_locked(const dl_shard *shard, dl_header *header, const char *body, uint64_t expected)
{
    uint64_t tick = dl_load(shard->header + DL_TICK), *slot = shard->slots + header->home % shard->slot_prime;
    if (!is_alone(shard, tick, expected, slot) || !dl_plan(shard->ring, header, body))
        return 0;
    header->tick = ++tick;
    if (!header->version) /* else that of the write whose value stays */
        header->version = tick;
    dl_put(shard->header + DL_TICK, tick);
    step("TICK");
    dl_put(slot, 2 * tick + 1); /* odd before the record happens: no hit on what it replaces from here on */
    step("slot");
    dl_write(shard->ring, header, body);
    dl_put(slot, 2 * tick + 2);
    step("slot");
    dl_put(shard->header + DL_SETTLED, tick);
    step("SETTLED");
    return 2 * tick + 2;
}

/* Take the write lock, append a record, and release the lock. `patience`: microseconds to wait for a lock that is not
   free. Sets `stamp` to the slot's new generation, or to 0, with nothing changed, wherever anything else is due.
   `expected`: the slot's generation if it has to be that one, else 0; an odd one is that during this write, and so tells
   its tick. A record without a version gets that of this write. */
enum dl_locked dl_append(const dl_shard *shard, uint64_t me, dl_header *header, const char *body, uint64_t expected,
                         uint64_t patience, uint64_t *stamp)
{
    enum dl_locked outcome;
    *stamp = 0;
    if (dl_body_size(header) > shard->longest)
        return DL_FAILED;
    if (dl_is_claimed(shard->header))
        return DL_BUSY; /* somebody has waited long: who comes now has to wait longer than this does */
    if (patience) {
        dl_wait wait = {.words = shard->header, .started = dl_now()};
        wait.deadline = wait.started + patience;
        outcome = dl_wait_for_lock(shard->lock, me, &wait);
    } else {
        outcome = dl_try_lock(shard->lock, me);
    }
    if (outcome == DL_TAKEN) {
        *stamp = append_locked(shard, header, body, expected);
        dl_unlock(shard->lock);
    }
    return outcome;
}
