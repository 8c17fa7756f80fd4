/* The core for Python: `Words`, `Lock`, `Context`, `Ring` and `Shard`; _native.pyi says what each call takes and returns.

   Every call but the two `wait` and a rollback in `end` keeps the GIL and takes a microsecond or two. No call but `wait`
   and `__exit__`, which resumes a generator, runs a signal handler. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_native.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Slots that Python's headers name only from 3.12 and 3.13 on. */
#define SLOT_MULTIPLE_INTERPRETERS 3
#define EACH_WITH_ITS_OWN_GIL ((void *)2)
#define SLOT_GIL 4
#define GIL_NOT_USED ((void *)1)

typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
    uint64_t *words;
    Py_ssize_t length;
} Words;

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

static const char *const SPELLED[NAMES] = {
    "connection", "core", "cursor", "cut_off", "in_transaction", "lock", "raw", "token", "txn",
};

typedef struct {
    PyTypeObject *words, *lock, *ring, *shard, *context;
    PyObject *names[NAMES];
} State;

static PyObject *allocated(PyTypeObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static void freed(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int takes(const char *name, Py_ssize_t found, Py_ssize_t expected)
{
    if (found == expected)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, found);
    return 0;
}

static int is_word(PyObject *object, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLong(object);
    return *word != (uint64_t)-1 || !PyErr_Occurred();
}

/* -- Words -- */

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

static PyType_Spec words_spec = {
    "diskcache_like.coherence._native.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, words_slots,
};

/* -- Lock -- */

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    int descriptor;
    Lock *self;
    (void)named;
    if (!PyArg_ParseTuple(args, "i", &descriptor) || !(self = (Lock *)allocated(type)))
        return NULL;
    self->lock.descriptor = descriptor;
    self->lock.words = self->own_words;
    return (PyObject *)self;
}

static PyObject *lock_close(PyObject *self, PyObject *unlocks)
{
    Lock *lock = (Lock *)self;
    dl_close(&lock->lock, unlocks == Py_True);
    lock->lock.words = lock->own_words;
    Py_CLEAR(lock->words);
    Py_RETURN_NONE;
}

static void lock_dealloc(PyObject *self)
{
    Lock *lock = (Lock *)self;
    if (lock->lock.descriptor >= 0)
        close(lock->lock.descriptor); /* which also releases it */
    Py_XDECREF(lock->words);
    freed(self);
}

static PyObject *lock_attach(PyObject *self, PyObject *words)
{
    Lock *lock = (Lock *)self;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *before = lock->words;
    if (!PyObject_TypeCheck(words, state->words) || ((Words *)words)->length <= DL_LIMIT) {
        PyErr_SetString(PyExc_TypeError, "a lock is attached to the words of a header");
        return NULL;
    }
    lock->words = Py_NewRef(words);
    __atomic_store_n(&lock->lock.words, ((Words *)words)->words, __ATOMIC_RELEASE);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static uint64_t me(void)
{
    return (uint64_t)PyThread_get_thread_ident();
}

static PyObject *outcome_of(enum dl_locked outcome)
{
    return outcome == DL_FAILED ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(outcome);
}

static PyObject *lock_try(PyObject *self, PyObject *ignores_claim)
{
    dl_lock *lock = &((Lock *)self)->lock;
    if (ignores_claim != Py_True && dl_is_claimed(lock->words) && __atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) != me())
        return PyLong_FromLong(DL_BUSY);
    return outcome_of(dl_try_lock(lock, me()));
}

/* Run signal handlers, and ask whether to go on. */
static int goes_on(PyObject *look)
{
    PyObject *result = PyErr_CheckSignals() < 0 ? NULL : PyObject_CallNoArgs(look);
    Py_XDECREF(result);
    return result != NULL;
}

static PyObject *lock_wait(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *seconds = count ? args[0] : NULL;
    dl_lock *lock = &((Lock *)self)->lock;
    PyObject *mapped = ((Lock *)self)->words; /* until the wait ends, though another thread may close the lock */
    double timeout = !seconds || seconds == Py_None ? INFINITY : PyFloat_AsDouble(seconds);
    dl_wait wait = {.words = lock->words, .started = dl_now(), .deadline = UINT64_MAX};
    enum dl_locked outcome;
    int error;
    if (!takes("wait", count, 2) || (timeout == -1 && PyErr_Occurred()))
        return NULL;
    if (timeout < 1e12)
        wait.deadline = wait.started + (timeout > 0 ? (uint64_t)(timeout * 1e6) : 0);
    Py_XINCREF(mapped);
    __atomic_fetch_add(&((Lock *)self)->waiting, 1, __ATOMIC_SEQ_CST);
    do {
        Py_BEGIN_ALLOW_THREADS
        outcome = dl_wait_for_lock(lock, me(), &wait);
        error = errno;
        Py_END_ALLOW_THREADS
    } while (outcome == DL_INTERRUPTED && goes_on(args[1]));
    __atomic_fetch_sub(&((Lock *)self)->waiting, 1, __ATOMIC_SEQ_CST);
    if (outcome == DL_INTERRUPTED)
        dl_withdraw_claim(&wait);
    Py_XDECREF(mapped);
    errno = error;
    return outcome == DL_INTERRUPTED ? NULL : outcome_of(outcome);
}

static int is_mine(const dl_lock *lock)
{
    return __atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) == me();
}

static PyObject *lock_release(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (is_mine(&((Lock *)self)->lock))
        dl_unlock(&((Lock *)self)->lock);
    Py_RETURN_NONE;
}

static PyObject *lock_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dl_enter(&((Lock *)self)->lock, me()));
}

static PyObject *lock_leave(PyObject *self, PyObject *unused)
{
    (void)unused;
    dl_leave(&((Lock *)self)->lock);
    Py_RETURN_NONE;
}

static PyObject *lock_owner(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(__atomic_load_n(&((Lock *)self)->lock.owner, __ATOMIC_ACQUIRE));
}

static PyObject *lock_is_mine(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(is_mine(&((Lock *)self)->lock));
}

static PyObject *lock_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(((Lock *)self)->lock.descriptor);
}

static PyObject *lock_contended(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dl_load(((Lock *)self)->lock.words + DL_WAITERS) != 0);
}

static PyObject *lock_waiting(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(__atomic_load_n(&((Lock *)self)->waiting, __ATOMIC_SEQ_CST));
}

static PyMethodDef lock_methods[] = {
    {"attach", lock_attach, METH_O, NULL},
    {"close", lock_close, METH_O, NULL},
    {"contended", lock_contended, METH_NOARGS, NULL},
    {"enter", lock_enter, METH_NOARGS, NULL},
    {"fileno", lock_fileno, METH_NOARGS, NULL},
    {"is_mine", lock_is_mine, METH_NOARGS, NULL},
    {"leave", lock_leave, METH_NOARGS, NULL},
    {"owner", lock_owner, METH_NOARGS, NULL},
    {"release", lock_release, METH_NOARGS, NULL},
    {"try_acquire", lock_try, METH_O, NULL},
    {"wait", (PyCFunction)(void (*)(void))lock_wait, METH_FASTCALL, NULL},
    {"waiting", lock_waiting, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_new, lock_new}, {Py_tp_dealloc, lock_dealloc}, {Py_tp_methods, lock_methods}, {0, NULL},
};

static PyType_Spec lock_spec = {
    "diskcache_like.coherence._native.Lock", sizeof(Lock), 0, Py_TPFLAGS_DEFAULT, lock_slots,
};

/* -- the end of a hold, and of a with-block -- */

static PyObject *attribute(const State *state, PyObject *object, enum name name)
{
    PyObject *found = object ? PyObject_GetAttr(object, state->names[name]) : NULL;
    if (!found)
        PyErr_Clear();
    return found;
}

static void put_attribute(const State *state, PyObject *object, enum name name, PyObject *value)
{
    if (PyObject_SetAttr(object, state->names[name], value) < 0)
        PyErr_Clear();
}

/* End what SQLite has open, and put the transaction aside, for the next holder of the lock in this process. */
static void roll_back(const State *state, PyObject *connection)
{
    PyObject *txn = attribute(state, connection, TXN), *raw = attribute(state, connection, RAW), *result = NULL;
    PyObject *is_open = raw && raw != Py_None ? attribute(state, raw, IN_TRANSACTION) : NULL;
    if (txn && txn != Py_None) {
        put_attribute(state, connection, CUT_OFF, txn);
        put_attribute(state, connection, TXN, Py_None);
    }
    if (is_open == Py_True && !(result = PyObject_CallMethod(raw, "rollback", NULL))) {
        PyErr_Clear(); /* as where the directory is gone; closing ends it, too, and the next write opens another */
        result = PyObject_CallMethod(raw, "close", NULL);
        put_attribute(state, connection, RAW, Py_None);
        put_attribute(state, connection, CURSOR, Py_None);
    }
    Py_XDECREF(result);
    Py_XDECREF(is_open);
    Py_XDECREF(raw);
    Py_XDECREF(txn);
}

/* Roll back and release what a thread holds of open shards. No signal handler runs in here, so in a `finally` it is done
   wherever a handler raises. A forked child has another token, and nothing of its own to end; where the kernel cannot
   tell (`ForkGuard`), the token is the highest number, and the child has closed the lock by then. */
static PyObject *end(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = PyModule_GetState(module);
    Py_ssize_t index;
    uint64_t owner = me(), here, opened;
    if ((count == 3 ? !is_word(args[2], &owner) : !takes("end", count, 2)) || !is_word(args[1], &here))
        return NULL;
    for (index = 0; index < PyTuple_Size(args[0]); index++) {
        PyObject *shard = PyTuple_GetItem(args[0], index), *token = attribute(state, shard, TOKEN);
        PyObject *lock = attribute(state, shard, LOCK), *core = attribute(state, lock, CORE);
        int is_own = token && is_word(token, &opened) && (here == opened || here == UINT64_MAX);
        if (core && PyObject_TypeCheck(core, state->lock) && is_own
            && __atomic_load_n(&((Lock *)core)->lock.owner, __ATOMIC_ACQUIRE) == owner) {
            PyObject *connection = attribute(state, shard, CONNECTION);
            roll_back(state, connection);
            Py_XDECREF(connection);
            dl_unlock(&((Lock *)core)->lock);
        }
        PyErr_Clear(); /* the token of a closed shard is -1, which is no word */
        Py_XDECREF(core);
        Py_XDECREF(lock);
        Py_XDECREF(token);
    }
    Py_RETURN_NONE;
}

/* End a with-block by resuming the generator of the context. A Python function would run signal handlers before it had
   resumed anything. */
static PyObject *context_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *generator, *yielded, *type, *error, *trace, *cause;
    int is_same, is_handled;
    if (!takes("__exit__", count, 3) || !(generator = PyObject_GetAttrString(self, "generator")))
        return NULL;
    yielded = args[1] == Py_None ? PyIter_Next(generator) : PyObject_CallMethod(generator, "throw", "O", args[1]);
    Py_DECREF(generator);
    if (yielded) {
        Py_DECREF(yielded);
        PyErr_SetString(PyExc_RuntimeError, "the generator of a context yields once");
        return NULL;
    }
    if (args[1] == Py_None)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    cause = PyException_GetCause(error);
    /* A StopIteration that passes through a generator comes out as the cause of a RuntimeError. */
    is_same = error == args[1] || (cause == args[1] && PyErr_GivenExceptionMatches(cause, PyExc_StopIteration));
    is_handled = !is_same && PyErr_GivenExceptionMatches(error, PyExc_StopIteration); /* the generator has returned */
    Py_XDECREF(cause);
    if (!is_same && !is_handled) {
        PyErr_Restore(type, error, trace);
        return NULL;
    }
    if (is_same)
        PyException_SetTraceback(args[1], args[2]);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return PyBool_FromLong(is_handled);
}

static PyMethodDef context_methods[] = {
    {"__exit__", (PyCFunction)(void (*)(void))context_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot context_slots[] = {{Py_tp_methods, context_methods}, {0, NULL}};

static PyType_Spec context_spec = {
    "diskcache_like.coherence._native.Context", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    context_slots,
};

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

/* Spell what `Written` has from its hash on as a header, but for place and links, and content that the caller frees. */
static char *record_of(PyObject *const *args, dl_header *header)
{
    PyObject *value = args[2], *tags = args[5], *original = args[6];
    Part parts[4];
    size_t size = 0, place = 0;
    int index, is_plain = PyObject_IsTrue(args[7]);
    char *body;
    memset(header, 0, sizeof *header);
    if (is_plain < 0 || !is_word(args[0], &header->home) || !is_part(args[1], &parts[0]) || !is_part(value, &parts[1])
        || !is_time(args[3], header->expire) || !is_time(args[4], header->fresh) || !is_part(original, &parts[2])
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
    header->kind = value == Py_None ? DL_REMOVAL : is_plain ? DL_RECORD : DL_ROW;
    if (!(body = PyMem_Malloc(size + 1))) {
        PyErr_NoMemory();
        return NULL;
    }
    for (index = 0; index < 4; index++) {
        memcpy(body + place, parts[index].start, (size_t)parts[index].size);
        place += (size_t)parts[index].size;
    }
    header->body_check = dl_crc32(body, size);
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

/* Return the fields of a `Written`; False if the tags are no ASCII text, which somebody planted. */
static PyObject *written_in(const dl_header *header, const char *body)
{
    const char *value = body + header->key_size, *original = value + header->value_size;
    const char *tags = original + (header->original_size > 0 ? header->original_size : 0);
    int64_t tick = (int64_t)header->tick;
    PyObject *key = bytes_in(body, header->key_size), *text = Py_None;
    if (header->kind == DL_REMOVAL)
        return Py_BuildValue("(LKNOOOOOO)", tick, header->home, key, Py_None, Py_None, Py_None, Py_None, Py_None,
                             Py_True);
    if (header->kind == DL_RECORD)
        return Py_BuildValue("(LKNNOOOOO)", tick, header->home, key, bytes_in(value, header->value_size), Py_None,
                             Py_None, Py_None, Py_None, Py_True);
    text = header->tags_size < 0 ? Py_NewRef(Py_None) : PyUnicode_DecodeASCII(tags, header->tags_size, NULL);
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        Py_XDECREF(key);
        return Py_NewRef(Py_False);
    }
    return Py_BuildValue("(LKNNNNNNO)", tick, header->home, key, bytes_in(value, header->value_size),
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
    if (page <= 8 * DL_FLOOR || page % 8 || capacity % 8 || !capacity || !prime || prime > slots || (uint64_t)page > size
        || capacity > size - (uint64_t)page || slots > (size - (uint64_t)page - capacity) / 8
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

static PyObject *ring_has(PyObject *self, PyObject *home)
{
    dl_ring *ring = &((Ring *)self)->ring;
    uint64_t number;
    if (!is_word(home, &number))
        return NULL;
    return PyBool_FromLong(closed(self)
                           || dl_load(ring->table + number % ring->table_prime) >= dl_load(ring->words + DL_FLOOR));
}

static PyObject *ring_find(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t home;
    char *key, *body;
    Py_ssize_t size;
    dl_header header;
    enum dl_found found;
    PyObject *written;
    if (!takes("find", count, 2) || !is_word(args[0], &home) || PyBytes_AsStringAndSize(args[1], &key, &size) < 0)
        return NULL;
    if (closed(self))
        Py_RETURN_NONE;
    found = dl_find(&((Ring *)self)->ring, home, key, (size_t)size, &header, &body);
    if (found == DL_NO_MEMORY)
        return PyErr_NoMemory();
    written = found == DL_FOUND ? written_in(&header, body) : Py_NewRef(found == DL_NOTHING ? Py_None : Py_False);
    free(body);
    return written;
}

static PyObject *ring_is_sound(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(dl_is_sound(&((Ring *)self)->ring));
}

static PyObject *ring_append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    dl_ring *ring = &((Ring *)self)->ring;
    uint64_t tick;
    dl_header header;
    char *body;
    int has_room;
    if (!takes("append", count, 9) || !is_word(args[0], &tick) || !(body = record_of(args + 1, &header)))
        return NULL;
    header.tick = tick;
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

/* What several writes of a key come to: the tick of the write that made the entry, that of the last one, the hash, what
   the last one wrote, and whether any was a removal. */
static PyObject *net_of(PyObject *before, const dl_header *header, PyObject *what)
{
    PyObject *ticks = PyLong_FromLongLong((int64_t)header->tick), *first = ticks;
    int was_removed = what == Py_None;
    if (before && PyTuple_GetItem(before, 3) != Py_None)
        first = PyTuple_GetItem(before, 0);
    if (before && PyTuple_GetItem(before, 4) == Py_True)
        was_removed = 1;
    if (!ticks)
        return NULL;
    Py_INCREF(first);
    return Py_BuildValue("(NNKOO)", first, ticks, header->home, what, was_removed ? Py_True : Py_False);
}

/* Damaged content may be about any key of its hash: of none of them is known what was written. */
static int removed_of(PyObject *net, uint64_t home)
{
    PyObject *key, *each;
    Py_ssize_t position = 0;
    while (PyDict_Next(net, &position, &key, &each)) {
        PyObject *changed;
        int failed;
        if (PyLong_AsUnsignedLongLong(PyTuple_GetItem(each, 2)) != home)
            continue;
        changed = Py_BuildValue("(OOOOO)", PyTuple_GetItem(each, 0), PyTuple_GetItem(each, 1), PyTuple_GetItem(each, 2),
                                Py_None, Py_True);
        failed = !changed || PyDict_SetItem(net, key, changed) < 0;
        Py_XDECREF(changed);
        if (failed)
            return 0;
    }
    return 1;
}

/* Add one record to what waiting records come to; return 1, 0 if that would be more than `most` keys, -1 for an error,
   or -2 for damage. */
static int gathered(PyObject *net, const dl_header *header, const char *body, Py_ssize_t most)
{
    PyObject *key = NULL, *what = NULL, *before, *after = NULL;
    int outcome = -1;
    if (!dl_has_whole_body(header, body)) {
        if (!removed_of(net, header->home))
            return -1;
        key = PyLong_FromUnsignedLongLong(header->home);
        what = Py_NewRef(Py_None);
    } else {
        key = bytes_in(body, header->key_size);
        what = header->kind == DL_REMOVAL ? Py_NewRef(Py_None)
            : header->kind == DL_RECORD   ? bytes_in(body + header->key_size, header->value_size)
                                          : written_in(header, body);
    }
    if (what == Py_False)
        outcome = -2;
    else if (key && what) {
        before = PyDict_GetItemWithError(net, key);
        if (!before && !PyErr_Occurred() && PyDict_Size(net) >= most)
            outcome = 0;
        else if (!PyErr_Occurred() && (after = net_of(before, header, what)) && PyDict_SetItem(net, key, after) >= 0)
            outcome = 1;
    }
    Py_XDECREF(key);
    Py_XDECREF(what);
    Py_XDECREF(after);
    return outcome;
}

static PyObject *ring_gather(PyObject *self, PyObject *most)
{
    dl_ring *ring = &((Ring *)self)->ring;
    Py_ssize_t limit = PyLong_AsSsize_t(most);
    uint64_t head = dl_load(ring->words + DL_HEAD);
    dl_place end = flushed_in(ring), next = end;
    PyObject *net;
    int outcome = 1;
    if ((limit == -1 && PyErr_Occurred()) || !(net = PyDict_New()))
        return NULL;
    while (end.offset < head && outcome == 1) {
        dl_header header;
        const char *body;
        outcome = dl_next(ring, head, &next, &header, &body) ? gathered(net, &header, body, limit) : -2;
        if (outcome == 1)
            end = next;
    }
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
    {"has", ring_has, METH_O, NULL},
    {"is_closed", ring_is_closed, METH_NOARGS, NULL},
    {"is_sound", ring_is_sound, METH_NOARGS, NULL},
    {"mend", (PyCFunction)(void (*)(void))ring_mend, METH_FASTCALL, NULL},
    {"newest_tick", ring_newest_tick, METH_NOARGS, NULL},
    {"take_over", (PyCFunction)(void (*)(void))ring_take_over, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_new, ring_new}, {Py_tp_dealloc, ring_dealloc}, {Py_tp_methods, ring_methods}, {0, NULL},
};

static PyType_Spec ring_spec = {
    "diskcache_like.coherence._native.Ring", sizeof(Ring), 0, Py_TPFLAGS_DEFAULT, ring_slots,
};

/* -- Shard -- */

static PyObject *shard_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    State *state = PyType_GetModuleState(type);
    Shard *self;
    Words *header, *slots;
    Ring *ring;
    unsigned long long prime, limit, tick_limit, due_limit, bound, longest;
    Lock *lock;
    int index;
    (void)named;
    if (!PyArg_ParseTuple(args, "O!O!O!KO!KKKKK", state->lock, &lock, state->words, &header, state->words, &slots, &prime,
                          state->ring, &ring, &limit, &tick_limit, &due_limit, &bound, &longest))
        return NULL;
    if (!prime || prime > (uint64_t)slots->length || header->length <= DL_LIMIT) {
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
    uint64_t expected, stamp;
    dl_header header;
    char *body;
    if (!takes("append", count, 9) || !is_word(args[0], &expected) || !(body = record_of(args + 1, &header)))
        return NULL;
    stamp = dl_append(&((Shard *)self)->shard, me(), &header, body, expected);
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

static PyType_Spec shard_spec = {
    "diskcache_like.coherence._native.Shard", sizeof(Shard), 0, Py_TPFLAGS_DEFAULT, shard_slots,
};

/* -- the module -- */

static PyObject *watcher; /* of tests */

static void on_step(const char *changed)
{
    PyObject *result = PyObject_CallFunction(watcher, "s", changed);
    if (!result)
        PyErr_WriteUnraisable(watcher);
    Py_XDECREF(result);
}

static PyObject *watch_steps(PyObject *module, PyObject *given)
{
    PyObject *before = watcher;
    (void)module;
    watcher = given == Py_None ? NULL : Py_NewRef(given);
    dl_on_step = watcher ? on_step : NULL;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"end", (PyCFunction)(void (*)(void))end, METH_FASTCALL, NULL},
    {"watch_steps", watch_steps, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject *added_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int executed(PyObject *module)
{
    static const struct {
        const char *name;
        long number;
    } constants[] = {
        {"EPOCH", DL_EPOCH}, {"BUFFER", DL_BUFFER}, {"TICK", DL_TICK}, {"WRITTEN", DL_WRITTEN},
        {"VOLUME_DUE", DL_VOLUME_DUE}, {"SETTLED", DL_SETTLED}, {"CROSS_SHARD", DL_CROSS_SHARD}, {"WAKE", DL_WAKE},
        {"WAITERS", DL_WAITERS}, {"FAIRNESS_CLAIM", DL_CLAIM}, {"LIMIT", DL_LIMIT}, {"RESERVED", DL_RESERVED},
        {"LAST", DL_LAST}, {"HEAD", DL_HEAD}, {"FLUSHED", DL_FLUSHED}, {"FLUSHED_LAST", DL_FLUSHED_LAST},
        {"FLOOR", DL_FLOOR}, {"TAKEN", DL_TAKEN}, {"BUSY", DL_BUSY}, {"HELD", DL_HELD},
        {"LONGEST_WALK", DL_LONGEST_WALK}, {"HEADER_SIZE", sizeof(dl_header)}, {"FARTHEST", DL_FARTHEST},
    };
    State *state = PyModule_GetState(module);
    size_t index;
    dl_prepare();
    for (index = 0; index < NAMES; index++)
        if (!(state->names[index] = PyUnicode_InternFromString(SPELLED[index])))
            return -1;
    for (index = 0; index < sizeof constants / sizeof *constants; index++)
        if (PyModule_AddIntConstant(module, constants[index].name, constants[index].number) < 0)
            return -1;
    state->words = added_type(module, &words_spec);
    state->lock = added_type(module, &lock_spec);
    state->ring = added_type(module, &ring_spec);
    state->shard = added_type(module, &shard_spec);
    state->context = added_type(module, &context_spec);
    return state->words && state->lock && state->ring && state->shard && state->context ? 0 : -1;
}

static void released(void *module)
{
    State *state = PyModule_GetState(module);
    int index;
    for (index = 0; index < NAMES; index++)
        Py_CLEAR(state->names[index]);
    Py_CLEAR(state->words);
    Py_CLEAR(state->lock);
    Py_CLEAR(state->ring);
    Py_CLEAR(state->shard);
    Py_CLEAR(state->context);
}

static PyModuleDef_Slot slots_of_3_11[] = {{Py_mod_exec, executed}, {0, NULL}};
static PyModuleDef_Slot slots_of_3_12[] = {
    {Py_mod_exec, executed}, {SLOT_MULTIPLE_INTERPRETERS, EACH_WITH_ITS_OWN_GIL}, {0, NULL},
};
static PyModuleDef_Slot slots_of_3_13[] = {
    {Py_mod_exec, executed}, {SLOT_MULTIPLE_INTERPRETERS, EACH_WITH_ITS_OWN_GIL}, {SLOT_GIL, GIL_NOT_USED}, {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, sizeof(State), functions, NULL, NULL, NULL, released,
};

PyMODINIT_FUNC PyInit__native(void)
{
    definition.m_slots = Py_Version >= 0x030D0000 ? slots_of_3_13
        : Py_Version >= 0x030C0000                ? slots_of_3_12
                                                  : slots_of_3_11;
    return PyModuleDef_Init(&definition);
}
