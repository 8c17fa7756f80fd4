/* What the Python types of the core share: their objects, the module's state, and how arguments are read. */

#ifndef DISKCACHE_LIKE_TYPES_H
#define DISKCACHE_LIKE_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_core.h"

typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
    uint64_t *words;
    Py_ssize_t length;
} Words;

typedef struct Row {
    uint64_t *words;
    uint64_t length;
    Py_buffer buffer;
    struct Row *before; /* those that were left, where another thread may still be adding to one */
} Row;

typedef struct {
    PyObject_HEAD
    Row *row; /* NULL before one is attached; length and words change at once, with this pointer */
} Counters;

typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
    dl_ring ring;
    int is_closed;
} Ring;

typedef struct {
    PyObject_HEAD
    dl_lock lock;
    uint64_t own_words[DL_LIMIT];
    PyObject *words; /* a header's, which keep mapped what `lock` points to; NULL before there is one */
    long waiting;    /* threads */
} Lock;

typedef struct {
    PyObject_HEAD
    PyObject *owners[4]; /* they keep mapped what `shard` points to */
    dl_shard shard;
} Shard;

/* Attributes that `end` looks at; a name that is made once takes a third of the time of one that is made each time. */
enum name { CONNECTION, CORE, CURSOR, CUT_OFF, IN_TRANSACTION, LOCK, RAW, TOKEN, TXN, NAMES };

typedef struct {
    PyTypeObject *words, *counters, *marks, *lock, *ring, *shard, *context;
    PyObject *names[NAMES];
} State;

extern PyType_Spec words_spec, counters_spec, marks_spec, lock_spec, ring_spec, shard_spec;

#define DIGEST_ABOVE 64     /* bytes; a longer stored key is digested before it is hashed */
#define SHARD_PRIME 1000003 /* keys with regular hashes still spread over the shards */

PyObject *key_at(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *located(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *open_plain(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pack_plain(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *read_file(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *read_plain(PyObject *module, PyObject *payload);
PyObject *write_plain(PyObject *module, PyObject *value);

/* Without the GIL: keep other threads from closing a lock, which unmaps its words, while a call reads them. */
#ifdef Py_GIL_DISABLED
#define BEGIN_ALONE(object) Py_BEGIN_CRITICAL_SECTION(object);
#define END_ALONE() Py_END_CRITICAL_SECTION();
#else
#define BEGIN_ALONE(object) {
#define END_ALONE() }
#endif

static inline PyObject *allocated(PyTypeObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static inline void freed(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static inline int takes(const char *name, Py_ssize_t found, Py_ssize_t expected)
{
    if (found == expected)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, found);
    return 0;
}

static inline int is_word(PyObject *object, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLong(object);
    return *word != (uint64_t)-1 || !PyErr_Occurred();
}

static inline void add_count(Counters *counters, uint64_t index, uint64_t amount)
{
    Row *row = __atomic_load_n(&counters->row, __ATOMIC_ACQUIRE);
    uint64_t *word;
    if (!row || index >= row->length)
        return;
    word = row->words + index;
#ifdef Py_GIL_DISABLED
    __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
#else
    __atomic_store_n(word, *word + amount, __ATOMIC_RELAXED);
#endif
}

static inline uint64_t me(void)
{
    return (uint64_t)PyThread_get_thread_ident();
}

static inline int is_owner(const dl_lock *lock, uint64_t thread)
{
    return __atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) == thread;
}

#endif
