/* `Counters`: the words in which one handle counts (counts.py says what they are).

   One process adds to them, under its GIL, so a count is a load and a store, and no count is lost. Others read a word at
   any time: it is stored at once, and tells a number that was right a moment ago. */

#include "_types.h"

#define LEAST_OCTAVE 6 /* of a histogram: times below 2**6 ns are in the first bucket, */
#define OCTAVES 31     /* and those above 2**37 ns, two minutes, in the last */
#define PARTS 16       /* buckets of an octave, so that a bucket is a sixteenth of its time wide */

static PyObject *counters_attach(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Counters *self = (Counters *)object;
    Py_buffer found;
    Py_ssize_t first, length;
    if (!takes("attach", count, 3))
        return NULL;
    first = PyLong_AsSsize_t(args[1]);
    length = first == -1 && PyErr_Occurred() ? -1 : PyLong_AsSsize_t(args[2]);
    if ((length == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &found, PyBUF_WRITABLE) < 0)
        return NULL;
    if (first < 0 || length < 0 || first > found.len / 8 || length > found.len / 8 - first
        || (uintptr_t)found.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the counters lie outside of the buffer, or across words of the memory");
        PyBuffer_Release(&found);
        return NULL;
    }
    BEGIN_ALONE(self)
#ifndef Py_GIL_DISABLED /* else another thread may be adding: what it adds to stays mapped until the process ends */
    if (self->buffer.obj)
        PyBuffer_Release(&self->buffer);
#endif
    self->buffer = found;
    self->length = 0;
    self->words = (uint64_t *)found.buf + first;
    self->length = length;
    END_ALONE()
    Py_RETURN_NONE;
}

static PyObject *counters_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    return allocated(type); /* of no words, until some are attached */
}

static void counters_dealloc(PyObject *self)
{
    if (((Counters *)self)->buffer.obj)
        PyBuffer_Release(&((Counters *)self)->buffer);
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
