/* `Lock`: the write lock for Python. `wait` alone releases the GIL and runs signal handlers. */

#include "_types.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

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
    PyObject *words;
    BEGIN_ALONE(self)
    dl_close(&lock->lock, unlocks == Py_True);
    lock->lock.words = lock->own_words;
    words = lock->words;
    lock->words = NULL;
    END_ALONE()
    Py_XDECREF(words);
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
    PyObject *before;
    if (!PyObject_TypeCheck(words, state->words) || ((Words *)words)->length <= DL_SINCE) {
        PyErr_SetString(PyExc_TypeError, "a lock is attached to the words of a header");
        return NULL;
    }
    BEGIN_ALONE(self)
    before = lock->words;
    lock->words = Py_NewRef(words);
    lock->lock.words = ((Words *)words)->words;
    END_ALONE()
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *outcome_of(enum dl_locked outcome)
{
    return outcome == DL_FAILED ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(outcome);
}

static PyObject *lock_try(PyObject *self, PyObject *ignores_claim)
{
    dl_lock *lock = &((Lock *)self)->lock;
    enum dl_locked outcome = DL_BUSY;
    int error = 0;
    BEGIN_ALONE(self)
    if (ignores_claim == Py_True || !dl_is_claimed(lock->words) || is_owner(lock, me())) {
        outcome = dl_try_lock(lock, me());
        error = errno;
    }
    END_ALONE()
    errno = error;
    return outcome_of(outcome);
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
    double timeout = !seconds || seconds == Py_None ? INFINITY : PyFloat_AsDouble(seconds);
    dl_wait wait = {.started = dl_now(), .deadline = UINT64_MAX};
    PyObject *mapped; /* until the wait ends, though another thread may close the lock */
    enum dl_locked outcome;
    int error;
    if (!takes("wait", count, 2) || (timeout == -1 && PyErr_Occurred()))
        return NULL;
    BEGIN_ALONE(self)
    mapped = Py_XNewRef(((Lock *)self)->words);
    wait.words = lock->words;
    END_ALONE()
    if (timeout < 1e12)
        wait.deadline = wait.started + (timeout > 0 ? (uint64_t)(timeout * 1e6) : 0);
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

static PyObject *lock_release(PyObject *self, PyObject *unused)
{
    (void)unused;
    BEGIN_ALONE(self)
    if (is_owner(&((Lock *)self)->lock, me()))
        dl_unlock(&((Lock *)self)->lock);
    END_ALONE()
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
    return PyBool_FromLong(is_owner(&((Lock *)self)->lock, me()));
}

static PyObject *lock_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(((Lock *)self)->lock.descriptor);
}

static PyObject *lock_contended(PyObject *self, PyObject *unused)
{
    int contended;
    (void)unused;
    BEGIN_ALONE(self)
    contended = dl_load(((Lock *)self)->lock.words + DL_WAITERS) != 0;
    END_ALONE()
    return PyBool_FromLong(contended);
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

PyType_Spec lock_spec = {
    "diskcache_like.coherence._native.Lock", sizeof(Lock), 0, Py_TPFLAGS_DEFAULT, lock_slots,
};
