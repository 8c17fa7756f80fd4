/* `Ring` and `Shard`: records for Python, how they are appended and found, and what waiting ones come to. */

#include "_types.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -- records -- */

/* The parts of a record's content, in the order in which they lie. */
typedef struct {
    const char *start;
    Py_ssize_t size;
} Part;

static int is_part(PyObject *object, Part *part)
{
    char *start;
    if (object == Py_None) {
        *part = (Part){"", 0};
        return 1;
    }
    if (PyUnicode_Check(object))
        return (part->start = PyUnicode_AsUTF8AndSize(object, &part->size)) != NULL;
    if (PyBytes_AsStringAndSize(object, &start, &part->size) < 0)
        return 0;
    part->start = start;
    return 1;
}

static int is_time(PyObject *object, uint32_t time[2])
{
    double seconds = object == Py_None ? (double)NAN : PyFloat_AsDouble(object);
    memcpy(time, &seconds, sizeof seconds);
    return seconds != -1 || !PyErr_Occurred();
}

/* Spell a write (hash, stored key, what is written) as a header, but for place and links, and content that the caller
   frees. It writes None for a removal, a record alone, or a `Row` of storage/shard/row.py. */
static char *record_of(PyObject *const *args, dl_header *header)
{
    PyObject *row = args[2], *value = row, *expire = Py_None, *fresh = Py_None, *tags = Py_None, *original = Py_None;
    Part parts[4];
    size_t size = 0, place = 0;
    int index, is_whole = PyTuple_Check(row);
    char *body;
    if (is_whole && PyTuple_Size(row) > 6) {
        value = PyTuple_GetItem(row, 0);
        expire = PyTuple_GetItem(row, 1);
        fresh = PyTuple_GetItem(row, 2);
        tags = PyTuple_GetItem(row, 3);
        original = PyTuple_GetItem(row, 6);
    }
    memset(header, 0, sizeof *header);
    if (!is_word(args[0], &header->home) || !is_part(args[1], &parts[0]) || !is_part(value, &parts[1])
        || !is_time(expire, header->expire) || !is_time(fresh, header->fresh) || !is_part(original, &parts[2])
        || !is_part(tags, &parts[3]))
        return NULL;
    for (index = 0; index < 4; index++) {
        size += (size_t)parts[index].size;
        if (parts[index].size > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a record has no part of more than 2 GiB");
            return NULL;
        }
    }
    header->key_size = (uint32_t)parts[0].size;
    header->value_size = (uint32_t)parts[1].size;
    header->original_size = original == Py_None ? -1 : (int32_t)parts[2].size;
    header->tags_size = tags == Py_None ? -1 : (int32_t)parts[3].size;
    header->kind = value == Py_None ? DL_REMOVAL : is_whole ? DL_ROW : DL_RECORD;
    if (!(body = PyMem_Malloc(size + 1))) {
        PyErr_NoMemory();
        return NULL;
    }
    for (index = 0; index < 4; index++) {
        memcpy(body + place, parts[index].start, (size_t)parts[index].size);
        place += (size_t)parts[index].size;
    }
    header->body_check = dl_crc32(0, body, size);
    return body;
}

static PyObject *time_in(const uint32_t time[2])
{
    double seconds;
    memcpy(&seconds, time, sizeof seconds);
    return isnan(seconds) ? Py_NewRef(Py_None) : PyFloat_FromDouble(seconds);
}

static PyObject *bytes_in(const char *start, int64_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(start, (Py_ssize_t)size);
}

/* Return the tags of a row, `none`, which goes, if it has none; False for what is no ASCII text: somebody planted it. */
static PyObject *tags_in(const dl_header *header, const char *body, PyObject *none)
{
    const char *tags = body + dl_body_size(header) - (header->tags_size > 0 ? header->tags_size : 0);
    PyObject *text = header->tags_size < 0 ? Py_XNewRef(none) : PyUnicode_DecodeASCII(tags, header->tags_size, NULL);
    Py_XDECREF(none);
    if (text || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return text;
    PyErr_Clear();
    return Py_NewRef(Py_False);
}

/* Return the fields of a `Written`; False for tags that somebody planted. */
static PyObject *written_in(const dl_header *header, const char *body)
{
    const char *value = body + header->key_size, *original = value + header->value_size;
    int64_t version = (int64_t)header->version;
    PyObject *key = bytes_in(body, header->key_size), *text;
    if (header->kind == DL_REMOVAL)
        return Py_BuildValue("(LKNOOOOOO)", version, header->home, key, Py_None, Py_None, Py_None, Py_None, Py_None,
                             Py_True);
    if (header->kind == DL_RECORD)
        return Py_BuildValue("(LKNNOOOOO)", version, header->home, key, bytes_in(value, header->value_size), Py_None,
                             Py_None, Py_None, Py_None, Py_True);
    text = tags_in(header, body, Py_NewRef(Py_None));
    if (text == Py_False) {
        Py_XDECREF(key);
        return text;
    }
    return Py_BuildValue("(LKNNNNNNO)", version, header->home, key, bytes_in(value, header->value_size),
                         time_in(header->expire), time_in(header->fresh), text,
                         bytes_in(original, header->original_size), Py_False);
}

/* -- Ring -- */

static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *source;
    Py_ssize_t page;
    unsigned long long capacity, slots, prime;
    uint64_t size;
    Ring *self;
    (void)named;
    if (!PyArg_ParseTuple(args, "OnKKK", &source, &page, &capacity, &slots, &prime)
        || !(self = (Ring *)allocated(type)))
        return NULL;
    if (PyObject_GetBuffer(source, &self->buffer, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    size = (uint64_t)self->buffer.len;
    if (page <= 8 * DL_CARRYING || page % 8 || capacity % 8 || !capacity || !prime || prime > slots
        || (uint64_t)page > size || capacity > size - (uint64_t)page || slots > (size - (uint64_t)page - capacity) / 8
        || (uintptr_t)self->buffer.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the ring lies outside of the buffer, or across words of the memory");
        Py_DECREF(self);
        return NULL;
    }
    self->ring.words = self->buffer.buf;
    self->ring.content = (char *)self->buffer.buf + page;
    self->ring.table = (uint64_t *)(void *)(self->ring.content + capacity);
    self->ring.capacity = capacity;
    self->ring.table_prime = prime;
    return (PyObject *)self;
}

static void ring_dealloc(PyObject *self)
{
    PyBuffer_Release(&((Ring *)self)->buffer);
    freed(self);
}

static PyObject *ring_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    __atomic_store_n(&((Ring *)self)->is_closed, 1, __ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static int closed(PyObject *self)
{
    return __atomic_load_n(&((Ring *)self)->is_closed, __ATOMIC_SEQ_CST);
}

static PyObject *ring_is_closed(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(closed(self));
}

/* Find the newest write of a key, whose body the caller frees; return 0 with an exception set. */
static int is_searched(PyObject *self, PyObject *const *args, dl_header *header, char **body, enum dl_found *found)
{
    uint64_t home;
    char *key;
    Py_ssize_t size;
    if (!is_word(args[0], &home) || PyBytes_AsStringAndSize(args[1], &key, &size) < 0)
        return 0;
    *found = dl_find(&((Ring *)self)->ring, home, key, (size_t)size, header, body);
    if (*found == DL_NO_MEMORY)
        PyErr_NoMemory();
    return *found != DL_NO_MEMORY;
}

static PyObject *ring_find(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    char *body;
    dl_header header;
    enum dl_found found;
    PyObject *written;
    if (!takes("find", count, 2))
        return NULL;
    if (closed(self))
        Py_RETURN_NONE;
    if (!is_searched(self, args, &header, &body, &found))
        return NULL;
    written = found == DL_FOUND ? written_in(&header, body) : Py_NewRef(found == DL_NOTHING ? Py_None : Py_False);
    free(body);
    return written;
}

static PyObject *ring_read(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    char *body;
    dl_header header;
    enum dl_found found;
    PyObject *packed;
    int is_carrying = dl_load(((Ring *)self)->ring.words + DL_CARRYING) != 0; /* before the walk */
    if (!takes("read", count, 2) || !is_searched(self, args, &header, &body, &found))
        return NULL;
    if ((is_carrying && found != DL_NOTHING) || found == DL_DAMAGED || closed(self))
        packed = Py_NewRef(Py_False);
    else if (found == DL_NOTHING)
        packed = Py_NewRef(Py_None);
    else if (header.kind == DL_REMOVAL)
        packed = Py_NewRef(Py_True);
    else
        packed = bytes_in(body + header.key_size, header.value_size);
    free(body);
    return packed;
}

static PyObject *ring_is_sound(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dl_is_sound(&((Ring *)self)->ring));
}

static PyObject *ring_append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    dl_ring *ring = &((Ring *)self)->ring;
    uint64_t tick, version;
    dl_header header;
    char *body;
    int has_room;
    if (!takes("append", count, 5) || !is_word(args[0], &tick) || !is_word(args[1], &version)
        || !(body = record_of(args + 2, &header)))
        return NULL;
    header.tick = tick;
    header.version = version;
    has_room = dl_plan(ring, &header, body);
    if (has_room)
        dl_write(ring, &header, body);
    PyMem_Free(body);
    return PyBool_FromLong(has_room);
}

static int is_place(PyObject *const *args, dl_place *place)
{
    uint64_t last;
    if (!is_word(args[0], &place->offset) || !is_word(args[1], &last))
        return 0;
    place->last = (uint32_t)last;
    return 1;
}

static PyObject *ring_mend(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    dl_place flushed;
    if (!takes("mend", count, 2) || !is_place(args, &flushed))
        return NULL;
    if (!dl_mend(&((Ring *)self)->ring, &flushed))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *ring_take_over(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    dl_place place;
    if (!takes("take_over", count, 2) || !is_place(args, &place))
        return NULL;
    if (!dl_take_over(&((Ring *)self)->ring, &place))
        return PyErr_NoMemory();
    return Py_BuildValue("(KI)", (unsigned long long)place.offset, place.last);
}

static dl_place flushed_in(const dl_ring *ring)
{
    return (dl_place){dl_load(ring->words + DL_FLUSHED), (uint32_t)(dl_load(ring->words + DL_FLUSHED_LAST) >> 32)};
}

static PyObject *ring_newest_tick(PyObject *self, PyObject *unused)
{
    dl_ring *ring = &((Ring *)self)->ring;
    dl_place place = flushed_in(ring);
    uint64_t limit = place.offset + ring->capacity;
    int64_t newest = 0;
    dl_header header;
    const char *body;
    (void)unused;
    while (dl_next(ring, limit, &place, &header, &body))
        if ((int64_t)header.tick > newest)
            newest = (int64_t)header.tick;
    return PyLong_FromLongLong(newest);
}

/* Bytes as the parameter of a statement, NaN for none: rows.py says why. */
static PyObject *blob_in(const char *start, int64_t size)
{
    return size < 0 ? PyFloat_FromDouble((double)NAN) : PyByteArray_FromStringAndSize(start, (Py_ssize_t)size);
}

/* Return a row as rows.py takes it, its number being that of the write that made the entry; None for a removal, False
   for tags that somebody planted. It lacks queue and number there if its key may tell them, being an extension of
   msgpack. */
static PyObject *row_in(const dl_header *header, const char *body, PyObject *number)
{
    const char *value = body + header->key_size, *original = value + header->value_size;
    int64_t version = (int64_t)header->version;
    int is_extension = header->key_size && (uint8_t)*body >= 0xC7 && (uint8_t)*body <= 0xC9;
    double expire, fresh;
    PyObject *text;
    if (header->kind == DL_REMOVAL)
        return Py_NewRef(Py_None);
    if (header->kind == DL_RECORD)
        return Py_BuildValue("(LNKNO)", version, blob_in(value, header->value_size), header->home,
                             blob_in(body, header->key_size), number);
    text = tags_in(header, body, blob_in("", -1));
    if (text == Py_False)
        return text;
    memcpy(&expire, header->expire, sizeof expire);
    memcpy(&fresh, header->fresh, sizeof fresh);
    return Py_BuildValue(is_extension ? "(LNKNOddNN)" : "(LNKNOddNNdd)", version,
                         blob_in(value, header->value_size), header->home, blob_in(body, header->key_size), number,
                         expire, fresh, text, blob_in(original, header->original_size), (double)NAN, (double)NAN);
}

/* What several writes of a key come to. */
typedef struct {
    dl_header header; /* of the last one; that of a removal if damage hides what it is about */
    const char *body;
    int64_t first; /* version of the write that made the entry */
    int was_removed;
} Sum;

/* Add one record to what waiting records come to, `net` having the place of each key among the sums; return 1, 0 if that
   would be more than `most` keys, -1 for an error, or -2 for damage. */
static int gathered(PyObject *net, Sum **sums, const dl_header *header, const char *body, Py_ssize_t most)
{
    Py_ssize_t count = PyDict_Size(net), index;
    int is_whole = dl_has_whole_body(header, body), is_there, failed;
    PyObject *key, *place;
    Sum *sum;
    if (header->home & 3 || header->home >> 63)
        return -2; /* no key has such a hash (keys.py), nor SQLite such an integer: it was planted */
    /* Damaged content may be about any key of its hash: of none of them is known what was written. */
    for (index = 0; index < count && !is_whole; index++)
        if ((*sums)[index].header.home == header->home) {
            (*sums)[index].header.kind = DL_REMOVAL;
            (*sums)[index].was_removed = 1;
        }
    if (!(key = is_whole ? bytes_in(body, header->key_size) : PyLong_FromUnsignedLongLong(header->home)))
        return -1;
    place = PyDict_GetItemWithError(net, key);
    is_there = place != NULL;
    index = is_there ? PyLong_AsSsize_t(place) : count;
    failed = !is_there && PyErr_Occurred();
    if (!is_there && !failed && count < most) {
        if (!(count & (count - 1)) && (sum = PyMem_Realloc(*sums, (size_t)(count ? 2 * count : 1) * sizeof *sum)))
            *sums = sum;
        else if (!(count & (count - 1)))
            PyErr_NoMemory();
        place = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(count);
        failed = !place || PyDict_SetItem(net, key, place) < 0;
        Py_XDECREF(place);
    }
    Py_DECREF(key);
    if (failed || index >= PyDict_Size(net))
        return failed ? -1 : 0;
    sum = *sums + index;
    if (!is_there || sum->header.kind == DL_REMOVAL)
        sum->first = (int64_t)header->version;
    sum->was_removed = !is_whole || header->kind == DL_REMOVAL || (is_there && sum->was_removed);
    sum->header = *header;
    sum->header.kind = is_whole ? header->kind : DL_REMOVAL;
    sum->body = body;
    return 1;
}

/* Give what each key comes to in place of its place among the sums; return as `gathered` does. */
static int summed(PyObject *net, const Sum *sums)
{
    PyObject *key, *place;
    Py_ssize_t position = 0;
    while (PyDict_Next(net, &position, &key, &place)) {
        const Sum *sum = sums + PyLong_AsSsize_t(place);
        PyObject *first = PyLong_FromLongLong(sum->first), *whole;
        PyObject *row = first ? row_in(&sum->header, sum->body, first) : NULL;
        int failed;
        if (!row || row == Py_False) {
            Py_XDECREF(first);
            Py_XDECREF(row);
            return row ? -2 : -1;
        }
        whole = Py_BuildValue("(NLKNO)", first, (int64_t)sum->header.version, sum->header.home, row,
                              sum->was_removed ? Py_True : Py_False);
        failed = !whole || PyDict_SetItem(net, key, whole) < 0;
        Py_XDECREF(whole);
        if (failed)
            return -1;
    }
    return 1;
}

static PyObject *ring_gather(PyObject *self, PyObject *most)
{
    dl_ring *ring = &((Ring *)self)->ring;
    Py_ssize_t limit = PyLong_AsSsize_t(most);
    uint64_t head = dl_load(ring->words + DL_HEAD);
    dl_place end = flushed_in(ring), next = end;
    PyObject *net;
    Sum *sums = NULL;
    int outcome = 1;
    if ((limit == -1 && PyErr_Occurred()) || !(net = PyDict_New()))
        return NULL;
    while (end.offset < head && outcome == 1) {
        dl_header header;
        const char *body;
        outcome = dl_next(ring, head, &next, &header, &body) ? gathered(net, &sums, &header, body, limit) : -2;
        if (outcome == 1)
            end = next;
    }
    if (outcome >= 0)
        outcome = summed(net, sums);
    PyMem_Free(sums);
    if (outcome < 0) {
        Py_DECREF(net);
        return outcome == -2 ? Py_NewRef(Py_None) : NULL;
    }
    return Py_BuildValue("(NKI)", net, (unsigned long long)end.offset, end.last);
}

static PyMethodDef ring_methods[] = {
    {"append", (PyCFunction)(void (*)(void))ring_append, METH_FASTCALL, NULL},
    {"close", ring_close, METH_NOARGS, NULL},
    {"find", (PyCFunction)(void (*)(void))ring_find, METH_FASTCALL, NULL},
    {"gather", ring_gather, METH_O, NULL},
    {"is_closed", ring_is_closed, METH_NOARGS, NULL},
    {"is_sound", ring_is_sound, METH_NOARGS, NULL},
    {"mend", (PyCFunction)(void (*)(void))ring_mend, METH_FASTCALL, NULL},
    {"newest_tick", ring_newest_tick, METH_NOARGS, NULL},
    {"read", (PyCFunction)(void (*)(void))ring_read, METH_FASTCALL, NULL},
    {"take_over", (PyCFunction)(void (*)(void))ring_take_over, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_new, ring_new}, {Py_tp_dealloc, ring_dealloc}, {Py_tp_methods, ring_methods}, {0, NULL},
};

PyType_Spec ring_spec = {
    "diskcache_like.coherence._native.Ring", sizeof(Ring), 0, Py_TPFLAGS_DEFAULT, ring_slots,
};

/* -- Shard -- */

/* Microseconds that an append waits for the write lock without the GIL, and without looking for signals: other appends
   hold it for one or two, so most of those who meet one another need not take it for longer. */
#define APPEND_PATIENCE 200

static PyObject *shard_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    State *state = PyType_GetModuleState(type);
    Shard *self;
    Words *header, *slots;
    Ring *ring;
    unsigned long long prime, limit, tick_limit, due_limit, bound, longest, most;
    Lock *lock;
    int index;
    (void)named;
    if (!PyArg_ParseTuple(args, "O!O!O!KO!KKKKKK", state->lock, &lock, state->words, &header, state->words, &slots, &prime,
                          state->ring, &ring, &limit, &tick_limit, &due_limit, &bound, &longest, &most))
        return NULL;
    if (!prime || prime > (uint64_t)slots->length || header->length <= DL_SINCE) {
        PyErr_SetString(PyExc_ValueError, "there are fewer words than the shard has");
        return NULL;
    }
    if (!(self = (Shard *)allocated(type)))
        return NULL;
    self->owners[0] = (PyObject *)header;
    self->owners[1] = (PyObject *)slots;
    self->owners[2] = (PyObject *)ring;
    self->owners[3] = (PyObject *)lock;
    for (index = 0; index < 4; index++)
        Py_INCREF(self->owners[index]);
    self->shard = (dl_shard){
        .header = header->words,
        .slots = slots->words,
        .ring = &ring->ring,
        .slot_prime = prime,
        .known_epoch = dl_load(header->words + DL_EPOCH),
        .known_buffer = dl_load(header->words + DL_BUFFER),
        .limit = limit,
        .tick_limit = tick_limit,
        .due_limit = due_limit,
        .bound = bound,
        .longest = longest,
        .most = most,
        .lock = &lock->lock,
    };
    return (PyObject *)self;
}

static void shard_dealloc(PyObject *self)
{
    int index;
    for (index = 0; index < 4; index++)
        Py_XDECREF(((Shard *)self)->owners[index]);
    freed(self);
}

static PyObject *shard_append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const dl_shard *shard = &((Shard *)self)->shard;
    uint64_t expected, version, stamp;
    enum dl_locked outcome;
    dl_header header;
    char *body;
    if (!takes("append", count, 5) || !is_word(args[0], &expected) || !is_word(args[1], &version)
        || !(body = record_of(args + 2, &header)))
        return NULL;
    header.version = version;
    outcome = dl_append(shard, me(), &header, body, expected, 0, &stamp);
    if (outcome == DL_BUSY && !dl_on_step) { /* the watcher of a test needs the GIL */
        Py_BEGIN_ALLOW_THREADS
        dl_append(shard, me(), &header, body, expected, APPEND_PATIENCE, &stamp);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(body);
    return PyLong_FromUnsignedLongLong(stamp);
}

static PyMethodDef shard_methods[] = {
    {"append", (PyCFunction)(void (*)(void))shard_append, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot shard_slots[] = {
    {Py_tp_new, shard_new}, {Py_tp_dealloc, shard_dealloc}, {Py_tp_methods, shard_methods}, {0, NULL},
};

PyType_Spec shard_spec = {
    "diskcache_like.coherence._native.Shard", sizeof(Shard), 0, Py_TPFLAGS_DEFAULT, shard_slots,
};
