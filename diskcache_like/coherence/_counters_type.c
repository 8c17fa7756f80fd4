/* `Counters`: the words in which one handle counts (counts.py says what they are).

   One process adds to them, under its GIL, so a count is a load and a store, and no count is lost. Others read a word at
   any time: it is stored at once, and tells a number that was right a moment ago. */

#include "_types.h"

#define LEAST_OCTAVE 6 /* of a histogram: times below 2**6 ns are in the first bucket, */
#define OCTAVES 31     /* and those above 2**37 ns, two minutes, in the last */
#define PARTS 16       /* buckets of an octave, so that a bucket is a sixteenth of its time wide */

static void release(Row *row)
{
    Row *before;
    for (; row; row = before) {
        before = row->before;
        PyBuffer_Release(&row->buffer);
        PyMem_Free(row);
    }
}

static PyObject *counters_attach(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Counters *self = (Counters *)object;
    Row *row;
    Py_ssize_t first, length;
    if (!takes("attach", count, 3))
        return NULL;
    first = PyLong_AsSsize_t(args[1]);
    length = first == -1 && PyErr_Occurred() ? -1 : PyLong_AsSsize_t(args[2]);
    if (length == -1 && PyErr_Occurred())
        return NULL;
    row = PyMem_Calloc(1, sizeof *row);
    if (!row)
        return PyErr_NoMemory();
    if (PyObject_GetBuffer(args[0], &row->buffer, PyBUF_WRITABLE) < 0) {
        PyMem_Free(row);
        return NULL;
    }
    if (first < 0 || length < 0 || first > row->buffer.len / 8 || length > row->buffer.len / 8 - first
        || (uintptr_t)row->buffer.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the counters lie outside of the buffer, or across words of the memory");
        release(row);
        return NULL;
    }
    row->words = (uint64_t *)row->buffer.buf + first;
    row->length = (uint64_t)length;
    row->before = __atomic_exchange_n(&self->row, row, __ATOMIC_ACQ_REL);
#ifndef Py_GIL_DISABLED /* else another thread may be adding: what it adds to stays mapped as long as this object */
    Row *before = row->before;
    row->before = NULL;
    release(before); /* last, since to unmap it may let another thread count */
#endif
    Py_RETURN_NONE;
}

static PyObject *counters_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    return allocated(type); /* of no words, until some are attached */
}

static void counters_dealloc(PyObject *self)
{
    release(((Counters *)self)->row);
    freed(self);
}

static PyObject *counters_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t index, amount;
    if (!takes("add", count, 2) || !is_word(args[0], &index) || !is_word(args[1], &amount))
        return NULL;
    add_count((Counters *)self, index, amount);
    Py_RETURN_NONE;
}

static PyObject *counters_observe(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t first, time, octave, bucket = 0;
    if (!takes("observe", count, 2) || !is_word(args[0], &first) || !is_word(args[1], &time))
        return NULL;
    octave = 63 - (uint64_t)__builtin_clzll(time | 1);
    if (octave >= LEAST_OCTAVE + OCTAVES)
        bucket = PARTS * OCTAVES - 1;
    else if (octave >= LEAST_OCTAVE)
        bucket = PARTS * (octave - LEAST_OCTAVE) + (time >> (octave - 4) & (PARTS - 1));
    add_count((Counters *)self, first + bucket, 1);
    Py_RETURN_NONE;
}

static PyMethodDef counters_methods[] = {
    {"attach", (PyCFunction)(void (*)(void))counters_attach, METH_FASTCALL, NULL},
    {"add", (PyCFunction)(void (*)(void))counters_add, METH_FASTCALL, NULL},
    {"observe", (PyCFunction)(void (*)(void))counters_observe, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot counters_slots[] = {
    {Py_tp_new, counters_new}, {Py_tp_dealloc, counters_dealloc}, {Py_tp_methods, counters_methods}, {0, NULL},
};

PyType_Spec counters_spec = {
    "diskcache_like.coherence._native.Counters", sizeof(Counters), 0, Py_TPFLAGS_DEFAULT, counters_slots,
};
