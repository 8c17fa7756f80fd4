/* `Words`: mapped words for Python; a hit in the hot layer reads one, so an index takes a word straight from memory. */

#include "_types.h"

static PyObject *words_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *source;
    Py_ssize_t first, length;
    Words *self;
    (void)named;
    if (!PyArg_ParseTuple(args, "Onn", &source, &first, &length) || !(self = (Words *)allocated(type)))
        return NULL;
    if (PyObject_GetBuffer(source, &self->buffer, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (first < 0 || length < 0 || first > self->buffer.len / 8 || length > self->buffer.len / 8 - first
        || (uintptr_t)self->buffer.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the words lie outside of the buffer, or across words of the memory");
        Py_DECREF(self);
        return NULL;
    }
    self->words = (uint64_t *)self->buffer.buf + first;
    self->length = length;
    return (PyObject *)self;
}

static void words_dealloc(PyObject *self)
{
    PyBuffer_Release(&((Words *)self)->buffer);
    freed(self);
}

static Py_ssize_t words_length(PyObject *self)
{
    return ((Words *)self)->length;
}

static uint64_t *word_at(PyObject *self, PyObject *index)
{
    Py_ssize_t number = PyLong_AsSsize_t(index);
    if (number >= 0 && number < ((Words *)self)->length)
        return ((Words *)self)->words + number;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "there is no word %zd", number);
    return NULL;
}

static PyObject *words_get(PyObject *self, PyObject *index)
{
    uint64_t *word = word_at(self, index);
    return word ? PyLong_FromUnsignedLongLong(dl_load(word)) : NULL;
}

static PyObject *words_item(PyObject *self, Py_ssize_t number) /* so that they can be iterated over */
{
    if (number < 0 || number >= ((Words *)self)->length) {
        PyErr_SetNone(PyExc_IndexError);
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(dl_load(((Words *)self)->words + number));
}

static int words_set(PyObject *self, PyObject *index, PyObject *value)
{
    uint64_t *word = word_at(self, index), number;
    if (!word)
        return -1;
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "words cannot be deleted");
        return -1;
    }
    if (!is_word(value, &number))
        return -1;
    dl_store(word, number);
    return 0;
}

static PyObject *words_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t *word, amount;
    if (!takes("add", count, 2) || !(word = word_at(self, args[0])) || !is_word(args[1], &amount))
        return NULL;
    return PyLong_FromUnsignedLongLong(__atomic_fetch_add(word, amount, __ATOMIC_SEQ_CST));
}

static PyObject *words_fill(PyObject *self, PyObject *value)
{
    Words *words = (Words *)self;
    uint64_t number;
    Py_ssize_t index;
    if (!is_word(value, &number))
        return NULL;
    for (index = 0; index < words->length; index++)
        __atomic_store_n(words->words + index, number, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static PyObject *words_wait(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t *word, expected;
    long timeout;
    int error;
    if (!takes("wait", count, 3) || !(word = word_at(self, args[0])) || !is_word(args[1], &expected))
        return NULL;
    timeout = PyLong_AsLong(args[2]);
    if (timeout == -1 && PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = dl_futex_wait(word, (uint32_t)expected, timeout);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(error);
}

static PyObject *words_wake(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t *word;
    long waiters;
    if (!takes("wake", count, 2) || !(word = word_at(self, args[0])))
        return NULL;
    waiters = PyLong_AsLong(args[1]);
    if (waiters == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(dl_futex_wake(word, (int)waiters));
}

static int words_buffer(PyObject *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, self, ((Words *)self)->words, 8 * ((Words *)self)->length, 0, flags);
}

static PyMethodDef words_methods[] = {
    {"add", (PyCFunction)(void (*)(void))words_add, METH_FASTCALL, NULL},
    {"fill", words_fill, METH_O, NULL},
    {"wait", (PyCFunction)(void (*)(void))words_wait, METH_FASTCALL, NULL},
    {"wake", (PyCFunction)(void (*)(void))words_wake, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot words_slots[] = {
    {Py_tp_new, words_new},         {Py_tp_dealloc, words_dealloc}, {Py_tp_methods, words_methods},
    {Py_mp_subscript, words_get},   {Py_mp_ass_subscript, words_set}, {Py_mp_length, words_length},
    {Py_sq_item, words_item},       {Py_sq_length, words_length},   {Py_bf_getbuffer, words_buffer},
    {0, NULL},
};

PyType_Spec words_spec = {
    "diskcache_like.coherence._native.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, words_slots,
};
