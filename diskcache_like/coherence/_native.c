/* The core for Python: `Words`, `Counters`, `Marks`, `Lock`, `Context`, `Ring` and `Shard`; _native.pyi says what each
   call takes and returns.

   Every call but the two `wait`, `read_file`, `write_back` and a rollback in `end` keeps the GIL. A call takes a
   microsecond or two, but for one that reads or writes a value. No call but `wait`, `of`, which may ask for a new name,
   and `__exit__`, which resumes a generator, runs a signal handler. */

#define _GNU_SOURCE /* sync_file_range */
#include <fcntl.h>

#include "_types.h"

/* Slots that Python's headers name only from 3.12 and 3.13 on. */
#define SLOT_MULTIPLE_INTERPRETERS 3
#define EACH_WITH_ITS_OWN_GIL ((void *)2)
#define SLOT_GIL 4
#define GIL_NOT_USED ((void *)1)

static const char *const SPELLED[NAMES] = {
    "connection", "core", "cursor", "cut_off", "in_transaction", "lock", "raw", "token", "txn",
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
        if (!(result = PyObject_CallMethod(raw, "close", NULL)))
            PyErr_Clear();
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
        if (core && PyObject_TypeCheck(core, state->lock) && is_own && is_owner(&((Lock *)core)->lock, owner)) {
            PyObject *connection = attribute(state, shard, CONNECTION);
            roll_back(state, connection);
            Py_XDECREF(connection);
            BEGIN_ALONE(core)
            dl_unlock(&((Lock *)core)->lock);
            END_ALONE()
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

/* Have the kernel begin to write what is in a file, where it can be asked to. */
static PyObject *write_back(PyObject *module, PyObject *descriptor)
{
    int file = (int)PyLong_AsLong(descriptor);
    (void)module;
    if (file == -1 && PyErr_Occurred())
        return NULL;
#ifdef SYNC_FILE_RANGE_WRITE
    Py_BEGIN_ALLOW_THREADS
    (void)!sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);
    Py_END_ALLOW_THREADS
#endif
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"end", (PyCFunction)(void (*)(void))end, METH_FASTCALL, NULL},
    {"key_at", (PyCFunction)(void (*)(void))key_at, METH_FASTCALL, NULL},
    {"located", (PyCFunction)(void (*)(void))located, METH_FASTCALL, NULL},
    {"open_plain", (PyCFunction)(void (*)(void))open_plain, METH_FASTCALL, NULL},
    {"pack_plain", (PyCFunction)(void (*)(void))pack_plain, METH_FASTCALL, NULL},
    {"read_file", (PyCFunction)(void (*)(void))read_file, METH_FASTCALL, NULL},
    {"read_plain", read_plain, METH_O, NULL},
    {"watch_steps", watch_steps, METH_O, NULL},
    {"write_back", write_back, METH_O, NULL},
    {"write_plain", write_plain, METH_O, NULL},
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
        {"WAITERS", DL_WAITERS}, {"FAIRNESS_CLAIM", DL_CLAIM}, {"LIMIT", DL_LIMIT}, {"COUNT", DL_COUNT},
        {"SINCE", DL_SINCE}, {"EVICTED", DL_EVICTED}, {"MARKS", DL_MARKS}, {"LEAST_CELLS", DL_LEAST_CELLS},
        {"RESERVED", DL_RESERVED}, {"SPACES", DL_SPACES}, {"SPACE_COUNTERS", DL_SPACE_COUNTERS},
        {"LAST", DL_LAST}, {"HEAD", DL_HEAD}, {"FLUSHED", DL_FLUSHED}, {"FLUSHED_LAST", DL_FLUSHED_LAST},
        {"FLOOR", DL_FLOOR}, {"CARRYING", DL_CARRYING}, {"TAKEN", DL_TAKEN}, {"BUSY", DL_BUSY}, {"HELD", DL_HELD},
        {"LONGEST_WALK", DL_LONGEST_WALK}, {"HEADER_SIZE", sizeof(dl_header)}, {"FARTHEST", DL_FARTHEST},
        {"DIGEST_ABOVE", DIGEST_ABOVE}, {"SHARD_PRIME", SHARD_PRIME},
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
    state->counters = added_type(module, &counters_spec);
    state->marks = added_type(module, &marks_spec);
    state->lock = added_type(module, &lock_spec);
    state->ring = added_type(module, &ring_spec);
    state->shard = added_type(module, &shard_spec);
    state->context = added_type(module, &context_spec);
    return state->words && state->counters && state->marks && state->lock && state->ring && state->shard
            && state->context
        ? 0
        : -1;
}

/* The types and the module refer to each other: unless the garbage collector sees both, neither is ever freed. */
static int visited(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->words);
    Py_VISIT(state->counters);
    Py_VISIT(state->marks);
    Py_VISIT(state->lock);
    Py_VISIT(state->ring);
    Py_VISIT(state->shard);
    Py_VISIT(state->context);
    return 0;
}

static int cleared(PyObject *module)
{
    State *state = PyModule_GetState(module);
    int index;
    for (index = 0; index < NAMES; index++)
        Py_CLEAR(state->names[index]);
    Py_CLEAR(state->words);
    Py_CLEAR(state->counters);
    Py_CLEAR(state->marks);
    Py_CLEAR(state->lock);
    Py_CLEAR(state->ring);
    Py_CLEAR(state->shard);
    Py_CLEAR(state->context);
    return 0;
}

static void released(void *module)
{
    cleared(module);
}

static PyModuleDef_Slot slots_of_3_11[] = {{Py_mod_exec, executed}, {0, NULL}};
static PyModuleDef_Slot slots_of_3_12[] = {
    {Py_mod_exec, executed}, {SLOT_MULTIPLE_INTERPRETERS, EACH_WITH_ITS_OWN_GIL}, {0, NULL},
};
static PyModuleDef_Slot slots_of_3_13[] = {
    {Py_mod_exec, executed}, {SLOT_MULTIPLE_INTERPRETERS, EACH_WITH_ITS_OWN_GIL}, {SLOT_GIL, GIL_NOT_USED}, {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, sizeof(State), functions, NULL, visited, cleared, released,
};

PyMODINIT_FUNC PyInit__native(void)
{
    definition.m_slots = Py_Version >= 0x030D0000 ? slots_of_3_13
        : Py_Version >= 0x030C0000                ? slots_of_3_12
                                                  : slots_of_3_11;
    return PyModuleDef_Init(&definition);
}
