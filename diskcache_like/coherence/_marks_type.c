/* `Marks`: the marks that hits leave for eviction, and ghosts; generations.py says what the cells are. And the counts of
   what is done with a key, by the space that it is in (counts.py): whoever leaves a mark counts, in one call.

   Anyone writes marks and ghosts without a lock: a lost or late update makes an eviction slightly worse, never a value
   wrong. So the order of these loads and stores does not matter, and none of them is more than relaxed. */

#include <string.h>

#include "_types.h"

#define GHOSTS 4                  /* that lie beside each other */
#define UNIT 6                    /* bits of the number of evictions that a ghost leaves out */
#define MIX 0x9E3779B97F4A7C15u   /* so that similar hashes have other fingerprints (D. Knuth) */
#define STEP 6364136223846793005u /* of a linear congruential generator (D. Knuth, MMIX) */
#define EXACT 32                  /* uses that are counted one by one */
#define COARSE 64                 /* the most uses that are counted at once */
#define MARKS 1                   /* of the kinds of marks in settings/policies.py: the bit of all that leave one, */
#define COUNTS 2                  /* and that of those which count */
#define COUNTER 2                 /* bits of a kind that lie below the number of a counter of the space, 0 for none */
#define LONGEST 48                /* bytes of a text in which its first colon is looked for */

typedef struct Marks {
    PyObject_HEAD
    Py_buffer buffer;
    uint64_t *header;
    uint32_t *cells; /* in pairs: two marks, and a ghost */
    uint64_t most;   /* cells that there are, a power of two */
    uint64_t prime;  /* the shard's number of slots */
    uint64_t chance;
    PyObject *counters, *spaces; /* where to count, NULL for nowhere; and the number of each space, by its start */
    uint64_t first;              /* index of the counters of the space that these marks count for */
    PyObject *of[DL_SPACES];     /* the marks that count for each space, made when they are asked for */
    PyObject *last, *last_start; /* those that were asked for last, and the start of their space */
} Marks;

static PyObject *marks_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *source;
    Py_ssize_t offset;
    unsigned long long prime;
    Marks *self;
    (void)named;
    if (!PyArg_ParseTuple(args, "OnK", &source, &offset, &prime) || !(self = (Marks *)allocated(type)))
        return NULL;
    if (PyObject_GetBuffer(source, &self->buffer, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (!prime || offset < 8 * (DL_MARKS + 1) || offset % 8 || self->buffer.len - 8 * GHOSTS < offset
        || (uintptr_t)self->buffer.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the cells lie outside of the buffer, or across words of the memory");
        Py_DECREF(self);
        return NULL;
    }
    self->header = self->buffer.buf;
    self->cells = (uint32_t *)((char *)self->buffer.buf + offset);
    for (self->most = GHOSTS; 16 * self->most <= (uint64_t)(self->buffer.len - offset);)
        self->most *= 2;
    self->prime = prime;
    self->chance = (uintptr_t)self;
    return (PyObject *)self;
}

static void marks_dealloc(PyObject *object)
{
    Marks *self = (Marks *)object;
    int index;
    for (index = 0; index < DL_SPACES; index++)
        Py_XDECREF(self->of[index]);
    Py_XDECREF(self->last);
    Py_XDECREF(self->last_start);
    Py_XDECREF(self->counters);
    Py_XDECREF(self->spaces);
    PyBuffer_Release(&self->buffer);
    freed(object);
}

/* Take the hash of a key, or the place of its row, which differs in the last two bits. */
static int is_home(PyObject *object, uint64_t *home)
{
    *home = PyLong_AsUnsignedLongLongMask(object) & ~(uint64_t)3;
    return *home != ((uint64_t)-1 & ~(uint64_t)3) || !PyErr_Occurred();
}

/* A number whose last 21 bits differ for most keys, also for similar ones and those that share a slot. */
static uint64_t place_of(const Marks *self, uint64_t home)
{
    return home % self->prime + self->prime * (home >> 2 & 511);
}

/* Index of the cell of a place: of its bits, the last tells the mark in the cell, and the next has no meaning. */
static uint64_t cell_of(const Marks *self, uint64_t place, unsigned *shift)
{
    uint64_t cells;
    *shift = dl_load(self->header + DL_MARKS) & 15;
    cells = (uint64_t)DL_LEAST_CELLS << *shift;
    return (place >> 2) & ((cells < self->most ? cells : self->most) - 1);
}

static uint16_t *mark_of(const Marks *self, uint64_t home, unsigned *shift)
{
    uint64_t place = place_of(self, home);
    return (uint16_t *)(self->cells + 2 * cell_of(self, place, shift)) + (place & 1);
}

static uint64_t used_at(uint16_t mark, uint64_t tick, unsigned shift)
{
    uint64_t now = tick >> shift;
    return (now - ((now - mark) & 0xFFFF)) << shift;
}

/* From EXACT uses on a count grows by a sixteenth of itself, with a chance that makes up for it: most hits on what is
   used much write nothing that other processes wait for. */
static void count_use(Marks *self, uint16_t *mark)
{
    uint16_t count = __atomic_load_n(mark, __ATOMIC_RELAXED);
    unsigned step = count < EXACT ? 1 : count < 16 * COARSE ? count >> 4 : COARSE;
    uint64_t chance;
    if (step > 1) {
        chance = __atomic_load_n(&self->chance, __ATOMIC_RELAXED) * STEP + 1;
        __atomic_store_n(&self->chance, chance, __ATOMIC_RELAXED);
        if ((chance >> 33) % step)
            return;
    }
    __atomic_store_n(mark, (uint16_t)(count + step < 0xFFFF ? count + step : 0xFFFF), __ATOMIC_RELAXED);
}

static int marks_set(PyObject *object, PyObject *index, PyObject *value)
{
    Marks *self = (Marks *)object;
    uint64_t home;
    unsigned shift;
    long kind;
    uint16_t *mark, now;
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "marks cannot be deleted");
        return -1;
    }
    kind = PyLong_AsLong(value);
    if ((kind == -1 && PyErr_Occurred()) || !is_home(index, &home))
        return -1;
    if (kind >> COUNTER && kind >> COUNTER < DL_SPACE_COUNTERS && self->counters)
        add_count((Counters *)self->counters, self->first + (uint64_t)(kind >> COUNTER), 1);
    mark = mark_of(self, home, &shift);
    if (kind & COUNTS) {
        count_use(self, mark);
    } else if (kind & MARKS) {
        now = (uint16_t)(dl_load(self->header + DL_TICK) >> shift);
        now = now ? now : 0xFFFF; /* 0 is no mark: one unit earlier */
        if (__atomic_load_n(mark, __ATOMIC_RELAXED) != now)
            __atomic_store_n(mark, now, __ATOMIC_RELAXED);
    }
    return 0;
}

static PyObject *marks_get(PyObject *self, PyObject *index)
{
    uint64_t home;
    unsigned shift;
    if (!is_home(index, &home))
        return NULL;
    return PyLong_FromLong(__atomic_load_n(mark_of((Marks *)self, home, &shift), __ATOMIC_RELAXED));
}

static PyObject *marks_put(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t home, mark;
    unsigned shift;
    if (!takes("put", count, 2) || !is_home(args[0], &home) || !is_word(args[1], &mark))
        return NULL;
    mark = mark < 0xFFFF ? mark : 0xFFFF;
    __atomic_store_n(mark_of((Marks *)self, home, &shift), (uint16_t)mark, __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

/* Let a time leave out one more bit. */
static uint16_t halved(uint16_t mark, uint64_t now)
{
    uint16_t time = (uint16_t)((now - ((now - mark) & 0xFFFF)) >> 1);
    return !mark ? 0 : time ? time : 0xFFFF;
}

static PyObject *marks_grow(PyObject *object, PyObject *are_times)
{
    Marks *self = (Marks *)object;
    uint64_t doubled = dl_load(self->header + DL_MARKS), now = dl_load(self->header + DL_TICK) >> (doubled & 15);
    uint64_t cells = (uint64_t)DL_LEAST_CELLS << (doubled & 15), index;
    int is_time = PyObject_IsTrue(are_times);
    uint16_t *marks;
    if (is_time < 0)
        return NULL;
    if (2 * cells > self->most)
        Py_RETURN_FALSE;
    for (index = 0; index < cells && is_time; index++) {
        marks = (uint16_t *)(self->cells + 2 * index);
        __atomic_store_n(marks, halved(__atomic_load_n(marks, __ATOMIC_RELAXED), now), __ATOMIC_RELAXED);
        __atomic_store_n(marks + 1, halved(__atomic_load_n(marks + 1, __ATOMIC_RELAXED), now), __ATOMIC_RELAXED);
    }
    for (index = 0; index < 2 * cells; index++)
        __atomic_store_n(self->cells + 2 * cells + index, __atomic_load_n(self->cells + index, __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
    dl_store(self->header + DL_MARKS, (doubled & 15) + 1);
    Py_RETURN_TRUE;
}

static PyObject *marks_last_use(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Marks *self = (Marks *)object;
    uint64_t home, last = 0;
    long long written, since, used;
    unsigned shift;
    uint16_t mark;
    if (!takes("last_use", count, 3) || !is_home(args[0], &home))
        return NULL;
    written = PyLong_AsLongLong(args[1]);
    since = written == -1 && PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[2]);
    if (since == -1 && PyErr_Occurred())
        return NULL;
    if (written > since && written > 0)
        last = 2 * (uint64_t)written;
    mark = __atomic_load_n(mark_of(self, home, &shift), __ATOMIC_RELAXED);
    if (mark) {
        used = (long long)used_at(mark, dl_load(self->header + DL_TICK), shift);
        if (used >> shift >= since >> shift) { /* a mark tells the time only roughly */
            used = used > since ? used : since;
            if (used > 0 && 2 * (uint64_t)used + 1 > last)
                last = 2 * (uint64_t)used + 1;
        }
    }
    return PyLong_FromUnsignedLongLong(last);
}

/* The first of the ghosts among which that of a key is, and the fingerprint of the key. The others follow at odd
   indices. */
static uint32_t *ghosts_of(const Marks *self, uint64_t home, uint32_t *fingerprint)
{
    unsigned shift;
    uint64_t cell = cell_of(self, place_of(self, home), &shift) & ~(uint64_t)(GHOSTS - 1);
    *fingerprint = (uint32_t)(home * MIX >> 48);
    return self->cells + 2 * cell + 1;
}

static uint16_t evictions(const Marks *self)
{
    return (uint16_t)(dl_load(self->header + DL_EVICTED) >> UNIT);
}

static PyObject *marks_knows(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Marks *self = (Marks *)object;
    uint64_t home, entries, recent;
    uint32_t fingerprint, *ghosts, ghost;
    int index;
    if (!takes("knows", count, 2) || !is_home(args[0], &home) || !is_word(args[1], &entries))
        return NULL;
    recent = (entries + entries / 10) >> UNIT;
    ghosts = ghosts_of(self, home, &fingerprint);
    for (index = 0; index < 2 * GHOSTS; index += 2) {
        ghost = __atomic_load_n(ghosts + index, __ATOMIC_RELAXED);
        if (ghost >> 16 == fingerprint && ghost && (uint16_t)(evictions(self) - ghost) <= recent)
            Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *marks_leave(PyObject *object, PyObject *index)
{
    Marks *self = (Marks *)object;
    uint64_t home;
    uint32_t fingerprint, *ghosts;
    int each;
    if (!is_home(index, &home))
        return NULL;
    ghosts = ghosts_of(self, home, &fingerprint);
    for (each = 2 * GHOSTS - 2; each; each -= 2)
        __atomic_store_n(ghosts + each, __atomic_load_n(ghosts + each - 2, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    __atomic_store_n(ghosts, fingerprint << 16 | evictions(self), __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

/* -- spaces: made_keys.py and canonical.py say how the stored key of a namespace, a text and a tuple begins -- */

/* What tells the space of a stored key: the start of a namespace; or a text up to its first colon, not counting what
   Django puts before a key, which may be the first member of a tuple and is the whole of that if it has no colon. */
static const char *space_of(const char *key, Py_ssize_t size, Py_ssize_t *length)
{
    const unsigned char *at = (const unsigned char *)key;
    const char *colon;
    Py_ssize_t text = 0, skipped;
    int is_member = size > 4 && (at[0] & 0xF0) == 0x90 && !memcmp(at + 1, "\xC7\0\x20", 3);
    *length = 0;
    if (size > 2 && at[0] == 0xC1) {
        *length = 2 + at[1] < size ? 2 + at[1] : 0;
        return key;
    }
    at += is_member ? 4 : 0;
    if ((at[0] & 0xE0) == 0xA0)
        text = *at++ & 0x1F;
    else if (at[0] == 0xD9 && size > 5)
        text = at[1], at += 2;
    else if (at[0] == 0xDB && size > 9)
        text = (Py_ssize_t)at[1] << 24 | at[2] << 16 | at[3] << 8 | at[4], at += 5;
    if (text > size - ((const char *)at - key))
        return key; /* damage */
    for (skipped = 1; text && at[0] == ':' && skipped < text && at[skipped] >= '0' && at[skipped] <= '9';)
        skipped++;
    if (skipped > 1 && skipped < text && at[skipped] == ':') /* Django's prefix, which is empty, and version */
        at += skipped + 1, text -= skipped + 1;
    colon = memchr(at, ':', text < LONGEST ? (size_t)text : LONGEST);
    *length = colon ? colon - (const char *)at : is_member && text <= LONGEST ? text : 0;
    return (const char *)at;
}

static PyObject *counting(Marks *self, uint64_t space)
{
    Marks *made = (Marks *)allocated(Py_TYPE((PyObject *)self));
    if (!made)
        return NULL;
    if (PyObject_GetBuffer(self->buffer.obj, &made->buffer, PyBUF_WRITABLE) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    made->header = self->header;
    made->cells = self->cells;
    made->most = self->most;
    made->prime = self->prime;
    made->chance = (uintptr_t)made;
    made->first = space * DL_SPACE_COUNTERS;
    Py_INCREF(self->counters);
    made->counters = self->counters;
    return (PyObject *)made;
}

static PyObject *marks_of(PyObject *object, PyObject *stored_key)
{
    Marks *self = (Marks *)object;
    PyObject *start = NULL, *number = NULL, *found = NULL;
    char *key;
    const char *text;
    Py_ssize_t size, length = 0;
    uint64_t space;
    if (!self->spaces) {
        Py_INCREF(object);
        return object;
    }
    if (PyBytes_AsStringAndSize(stored_key, &key, &size) < 0)
        return NULL;
    text = size ? space_of(key, size, &length) : key;
    BEGIN_ALONE(self)
    if (self->last && length == PyBytes_Size(self->last_start)
        && !memcmp(text, PyBytes_AsString(self->last_start), (size_t)length)) {
        found = self->last;
        Py_INCREF(found);
    } else if ((start = PyBytes_FromStringAndSize(text, length)) && (number = PyObject_GetItem(self->spaces, start))
               && is_word(number, &space)) {
        space = space < DL_SPACES ? space : 0;
        found = self->of[space] || (self->of[space] = counting(self, space)) ? self->of[space] : NULL;
        Py_XINCREF(found);
        if (found && (space || !length)) { /* else the number is not known yet */
            PyObject *last = self->last, *last_start = self->last_start;
            Py_INCREF(found);
            self->last = found;
            Py_INCREF(start);
            self->last_start = start;
            Py_XDECREF(last);
            Py_XDECREF(last_start);
        }
    }
    END_ALONE()
    Py_XDECREF(number);
    Py_XDECREF(start);
    return found;
}

static PyObject *marks_count_in(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Marks *self = (Marks *)object;
    State *state = PyType_GetModuleState(Py_TYPE(object));
    if (!takes("count_in", count, 2))
        return NULL;
    if (!PyObject_TypeCheck(args[0], state->counters) || self->counters) {
        PyErr_SetString(PyExc_TypeError, "count_in takes Counters and the spaces, once");
        return NULL;
    }
    Py_INCREF(args[0]);
    self->counters = args[0];
    Py_INCREF(args[1]);
    self->spaces = args[1];
    Py_RETURN_NONE;
}

static PyMethodDef marks_methods[] = {
    {"of", marks_of, METH_O, NULL},
    {"count_in", (PyCFunction)(void (*)(void))marks_count_in, METH_FASTCALL, NULL},
    {"put", (PyCFunction)(void (*)(void))marks_put, METH_FASTCALL, NULL},
    {"grow", marks_grow, METH_O, NULL},
    {"last_use", (PyCFunction)(void (*)(void))marks_last_use, METH_FASTCALL, NULL},
    {"knows", (PyCFunction)(void (*)(void))marks_knows, METH_FASTCALL, NULL},
    {"leave", marks_leave, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot marks_slots[] = {
    {Py_tp_new, marks_new},           {Py_tp_dealloc, marks_dealloc},
    {Py_tp_methods, marks_methods},   {Py_mp_subscript, marks_get},
    {Py_mp_ass_subscript, marks_set}, {0, NULL},
};

PyType_Spec marks_spec = {
    "diskcache_like.coherence._native.Marks", sizeof(Marks), 0, Py_TPFLAGS_DEFAULT, marks_slots,
};
