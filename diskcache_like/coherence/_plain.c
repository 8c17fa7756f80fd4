/* Plain data in msgpack (None, booleans, integers of 64 bits, floats, texts, byte strings, lists and dictionaries), and
   the records and keys that have nothing else.

   What a scan has found sound is read without looking again, and no list is made longer than the bytes account for.
   Everything else is left to Python: extensions, damage, floats of 32 bits, texts with lone surrogates to write. */

#include <string.h>

#include "_types.h"

#define DEEPEST 400 /* MAX_DEPTH of msgpack_reader.py */
#define PART (DIGEST_ABOVE + 9) /* bytes of a text in a key, with its head */
#define KEYS 64     /* keys that are kept while a value is read: records have the same few */

enum kind { WRONG, CONSTANT, SMALL, UNSIGNED, SIGNED, REAL, TEXT, BYTES, ARRAY, MAP };

typedef struct {
    enum kind kind;
    unsigned width; /* of the number behind the first byte, in bytes */
    uint64_t number; /* it; else the number in the first byte */
} Token;

typedef struct {
    const uint8_t *bytes;
    uint64_t size;
    PyObject *text;
} Key;

/* From 0xC0 on, by the first byte. */
static const uint8_t KINDS[32] = {
    CONSTANT, WRONG, CONSTANT, CONSTANT, BYTES, BYTES, BYTES, WRONG, WRONG, WRONG, WRONG, REAL, UNSIGNED, UNSIGNED,
    UNSIGNED, UNSIGNED, SIGNED, SIGNED, SIGNED, SIGNED, WRONG, WRONG, WRONG, WRONG, WRONG, TEXT, TEXT, TEXT, ARRAY,
    ARRAY, MAP, MAP,
};
static const uint8_t WIDTHS[32] = {
    0, 0, 0, 0, 1, 2, 4, 0, 0, 0, 0, 8, 1, 2, 4, 8, 1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4,
};

/* Spelled so that a compiler makes one load of it. */
static inline uint64_t four_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t number_at(const uint8_t *at, unsigned width)
{
    switch (width) {
    case 1:
        return at[0];
    case 2:
        return (uint64_t)at[0] << 8 | at[1];
    case 4:
        return four_at(at);
    default:
        return four_at(at) << 32 | four_at(at + 4);
    }
}

/* Take the next token, but for the content of a text or byte string; WRONG if there is none. */
static inline Token taken(const uint8_t **at, const uint8_t *end)
{
    Token token = {WRONG, 0, 0};
    unsigned first;
    if (*at == end)
        return token;
    first = *(*at)++;
    token.number = first;
    if (first < 0x80 || first >= 0xE0) {
        token.kind = SMALL;
    } else if (first < 0xC0) {
        token.kind = first < 0x90 ? MAP : first < 0xA0 ? ARRAY : TEXT;
        token.number = first & (first < 0xA0 ? 15 : 31);
    } else if (end - *at >= WIDTHS[first - 0xC0]) {
        token.kind = KINDS[first - 0xC0];
        token.width = WIDTHS[first - 0xC0];
        if (token.width)
            token.number = number_at(*at, token.width);
        *at += token.width;
    }
    return token;
}

/* Tell whether all of it is one plain value. */
static int is_sound(const uint8_t *at, const uint8_t *end)
{
    uint64_t left[DEEPEST + 1] = {1}; /* what is still to come at each depth */
    int depth = 0;
    for (;;) {
        Token token;
        while (!left[depth])
            if (!depth--)
                return at == end;
        left[depth]--;
        token = taken(&at, end);
        if (token.kind == ARRAY || token.kind == MAP) {
            if (++depth > DEEPEST)
                return 0;
            left[depth] = token.kind == MAP ? 2 * token.number : token.number;
        } else if (token.kind == TEXT || token.kind == BYTES) {
            if (token.number > (uint64_t)(end - at))
                return 0;
            at += token.number;
        } else if (token.kind == WRONG) {
            return 0;
        }
    }
}

static PyObject *text(const uint8_t *bytes, uint64_t size, Key *keys)
{
    Key *key = keys && size ? &keys[(size ^ bytes[0] ^ 5 * bytes[size - 1]) % KEYS] : NULL;
    PyObject *made;
    if (key && key->text && key->size == size && !memcmp(key->bytes, bytes, size))
        return Py_NewRef(key->text);
    made = PyUnicode_DecodeUTF8((const char *)bytes, (Py_ssize_t)size, "surrogatepass");
    if (key && made) {
        Py_XDECREF(key->text);
        *key = (Key){bytes, size, Py_NewRef(made)};
    }
    return made;
}

static PyObject *container(Token token, const uint8_t **at, const uint8_t *end, Key *keys);

/* Read the next value of what is sound, as a key if `is_key`. */
static inline PyObject *value_at(const uint8_t **at, const uint8_t *end, Key *keys, int is_key)
{
    Token token = taken(at, end);
    unsigned unused = 64 - 8 * token.width;
    double real;
    switch (token.kind) {
    case CONSTANT:
        return token.number == 0xC0 ? Py_NewRef(Py_None) : PyBool_FromLong(token.number & 1);
    case SMALL:
        return PyLong_FromLong((int8_t)token.number);
    case UNSIGNED:
        return PyLong_FromUnsignedLongLong(token.number);
    case SIGNED:
        return PyLong_FromLongLong((int64_t)(token.number << unused) >> unused);
    case REAL:
        memcpy(&real, &token.number, sizeof real);
        return PyFloat_FromDouble(real);
    case TEXT:
        *at += token.number;
        return text(*at - token.number, token.number, is_key ? keys : NULL);
    case BYTES:
        *at += token.number;
        return PyBytes_FromStringAndSize((const char *)*at - token.number, (Py_ssize_t)token.number);
    default:
        return container(token, at, end, keys);
    }
}

static PyObject *container(Token token, const uint8_t **at, const uint8_t *end, Key *keys)
{
    PyObject *made = token.kind == ARRAY ? PyList_New((Py_ssize_t)token.number) : PyDict_New(), *key, *value;
    uint64_t index;
    for (index = 0; made && index < token.number; index++) {
        if (token.kind == ARRAY) {
            if (!(value = value_at(at, end, keys, 0)) || PyList_SetItem(made, (Py_ssize_t)index, value) < 0)
                Py_CLEAR(made);
            continue;
        }
        key = value_at(at, end, keys, 1);
        value = key ? value_at(at, end, keys, 0) : NULL;
        if (!value || PyDict_SetItem(made, key, value) < 0)
            Py_CLEAR(made);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return made;
}

static PyObject *plain_value(const uint8_t *at, const uint8_t *end)
{
    Key keys[KEYS] = {{0}};
    PyObject *value;
    int index;
    if (!is_sound(at, end))
        return Py_NewRef(Py_NotImplemented);
    value = value_at(&at, end, keys, 0);
    for (index = 0; index < KEYS; index++)
        Py_XDECREF(keys[index].text);
    return value;
}

/* Return NotImplemented for anything but plain bytes; what may be changed by others after the scan is none. */
PyObject *read_plain(PyObject *module, PyObject *payload)
{
    char *content;
    Py_ssize_t size;
    (void)module;
    if (!PyBytes_CheckExact(payload) || PyBytes_AsStringAndSize(payload, &content, &size) < 0)
        return Py_NewRef(Py_NotImplemented);
    return plain_value((const uint8_t *)content, (const uint8_t *)content + size);
}

/* -- writing: each function returns 0 for want of memory, or if it is not plain -- */

typedef struct {
    uint8_t *bytes;
    size_t used, room;
} Output;

static int put(Output *output, const void *bytes, size_t size)
{
    if (size > output->room - output->used) {
        size_t room = 2 * output->room + size;
        uint8_t *moved = PyMem_Realloc(output->bytes, room);
        if (!moved)
            return 0;
        output->bytes = moved;
        output->room = room;
    }
    memcpy(output->bytes + output->used, bytes, size);
    output->used += size;
    return 1;
}

static int put_number(Output *output, unsigned first, uint64_t number, unsigned width)
{
    uint8_t bytes[9] = {(uint8_t)first};
    unsigned index;
    for (index = width; index; index--, number >>= 8)
        bytes[index] = (uint8_t)number;
    return put(output, bytes, 1 + width);
}

/* Put a number in 1, 2, 4 or 8 bytes, whose first bytes are `first` and those after it; at least in 2 to the `least`. */
static int put_wide(Output *output, unsigned first, uint64_t number, unsigned least)
{
    unsigned power = number > UINT32_MAX ? 3 : number > UINT16_MAX ? 2 : number > UINT8_MAX;
    if (power < least)
        power = least;
    return put_number(output, first + power, number, 1U << power);
}

static int put_size(Output *output, unsigned few, Py_ssize_t most, Py_ssize_t size, unsigned first, unsigned least)
{
    if (size <= most)
        return put_number(output, few | (unsigned)size, 0, 0);
    return (uint64_t)size <= UINT32_MAX && put_wide(output, first, (uint64_t)size, least);
}

static int put_integer(Output *output, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    unsigned power;
    if (overflow)
        return 0;
    if (-32 <= number && number < 128)
        return put_number(output, (unsigned)number & 0xFF, 0, 0);
    if (number > 0)
        return put_wide(output, 0xCC, (uint64_t)number, 0);
    power = number < INT32_MIN ? 3 : number < INT16_MIN ? 2 : number < INT8_MIN;
    return put_number(output, 0xD0 + power, (uint64_t)number, 1U << power);
}

static int put_value(Output *output, PyObject *value, int depth)
{
    PyTypeObject *type = Py_TYPE(value);
    PyObject *key, *member;
    Py_ssize_t size, index;
    if (type == &PyUnicode_Type) {
        const char *bytes = PyUnicode_AsUTF8AndSize(value, &size);
        return bytes && put_size(output, 0xA0, 31, size, 0xD9, 0) && put(output, bytes, (size_t)size);
    }
    if (type == &PyLong_Type)
        return put_integer(output, value);
    if (type == &PyFloat_Type) {
        double real = PyFloat_AsDouble(value);
        uint64_t number;
        memcpy(&number, &real, sizeof number);
        return put_number(output, 0xCB, number, 8);
    }
    if (value == Py_None || type == &PyBool_Type)
        return put_number(output, value == Py_None ? 0xC0 : value == Py_True ? 0xC3 : 0xC2, 0, 0);
    if (type == &PyBytes_Type) {
        size = PyBytes_Size(value);
        return put_size(output, 0, -1, size, 0xC4, 0) && put(output, PyBytes_AsString(value), (size_t)size);
    }
    if (!depth--)
        return 0;
    if (type == &PyList_Type) {
        size = PyList_Size(value);
        if (!put_size(output, 0x90, 15, size, 0xDB, 1))
            return 0;
        for (index = 0; index < size; index++)
            if (!put_value(output, PyList_GetItem(value, index), depth))
                return 0;
        return 1;
    }
    if (type != &PyDict_Type || !put_size(output, 0x80, 15, PyDict_Size(value), 0xDD, 1))
        return 0;
    for (index = 0; PyDict_Next(value, &index, &key, &member);)
        if (!put_value(output, key, depth) || !put_value(output, member, depth))
            return 0;
    return 1;
}

/* Return NotImplemented for what is not plain. No other code runs meanwhile that might change the value, if there is a
   GIL; else it is left to Python. */
PyObject *write_plain(PyObject *module, PyObject *value)
{
    PyObject *made = NULL;
    (void)module;
#ifndef Py_GIL_DISABLED
    Output output = {PyMem_Malloc(256), 0, 256};
    if (output.bytes && put_value(&output, value, DEEPEST))
        made = PyBytes_FromStringAndSize((const char *)output.bytes, (Py_ssize_t)output.used);
    PyMem_Free(output.bytes);
    PyErr_Clear(); /* of lone surrogates, or for want of memory */
#endif
    return made ? made : Py_NewRef(Py_NotImplemented);
}

/* -- records: encoding/record.py says how they are laid out -- */

#define RESIDUE 0x2144DF1C   /* CRC-32 of any message followed by its own */
#define CHECKED_HERE 1024    /* bytes of the largest record whose checksum is not left to zlib-ng */
#define LEAST_SIMPLE 6       /* bytes of the smallest simple record */
#define PLAIN_HEAD 26 /* bytes of a full record before its tags */
#define FULL 2
#define HAS_EXPIRE 2
#define MODE_RAW 1

static char *put_least_first(char *at, uint64_t number, unsigned width)
{
    for (; width; width--, number >>= 8)
        *at++ = (char)(number & 0xFF);
    return at;
}

PyObject *pack_plain(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    char *key, *payload, *tags, *at;
    Py_ssize_t key_size, payload_size, tags_size, head;
    double expire = 0;
    uint64_t moment;
    PyObject *packed;
    (void)module;
    if (!takes("pack_plain", count, 4) || PyBytes_AsStringAndSize(args[0], &key, &key_size) < 0
        || PyBytes_AsStringAndSize(args[1], &payload, &payload_size) < 0
        || PyBytes_AsStringAndSize(args[3], &tags, &tags_size) < 0
        || (args[2] != Py_None && (expire = PyFloat_AsDouble(args[2])) == -1 && PyErr_Occurred()))
        return NULL;
    if (tags_size > 0xFFFF) {
        PyErr_SetString(PyExc_OverflowError, "a record has room for 65,535 bytes of tags");
        return NULL;
    }
    head = args[2] == Py_None && !tags_size ? 1 : PLAIN_HEAD;
    if (!(packed = PyBytes_FromStringAndSize(NULL, head + tags_size + payload_size + 4)))
        return NULL;
    at = PyBytes_AsString(packed);
    *at = 1;
    if (head == PLAIN_HEAD) {
        memcpy(&moment, &expire, sizeof moment);
        at = put_least_first(at, FULL, 1);
        at = put_least_first(at, args[2] == Py_None ? 0 : HAS_EXPIRE, 1);
        at = put_least_first(at, MODE_RAW, 4);
        at = put_least_first(at, moment, 8);
        at = put_least_first(at, 0, 8);
        at = put_least_first(at, (uint64_t)tags_size, 2);
        put_least_first(at, 0, 2);
    }
    at = PyBytes_AsString(packed) + head;
    memcpy(at, tags, (size_t)tags_size);
    memcpy(at + tags_size, payload, (size_t)payload_size);
    head += tags_size + payload_size;
    at = PyBytes_AsString(packed);
    put_least_first(at + head, dl_crc32(dl_crc32(0, key, (size_t)key_size), at, (size_t)head), 4);
    return packed;
}

/* Return the head of a record that has no metadata but an expiry, and its value in the row, in bytes; 0 for others. */
static Py_ssize_t bare_head(const uint8_t *packed, Py_ssize_t size)
{
    static const uint8_t before[6] = {FULL, HAS_EXPIRE, MODE_RAW}, after[12];
    if (*packed == 1)
        return 1;
    return size > PLAIN_HEAD + 4 && !memcmp(packed, before, sizeof before) && !memcmp(packed + 14, after, sizeof after)
        ? PLAIN_HEAD
        : 0;
}

/* Return (value, expiry) of an intact record of a text, a byte string or a number; None for any other. */
PyObject *open_plain(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    char *key, *content;
    Py_ssize_t key_size, size, head;
    const uint8_t *packed, *at, *end;
    uint64_t moment = 0;
    double expire;
    Token token;
    PyObject *value = NULL;
    int index;
    (void)module;
    if (!takes("open_plain", count, 2))
        return NULL;
    if (!PyBytes_CheckExact(args[1]) || PyBytes_AsStringAndSize(args[1], &content, &size) < 0 || size < LEAST_SIMPLE
        || size > CHECKED_HERE || !(head = bare_head(packed = (const uint8_t *)content, size))
        || PyBytes_AsStringAndSize(args[0], &key, &key_size) < 0
        || dl_crc32(dl_crc32(0, key, (size_t)key_size), packed, (size_t)size) != RESIDUE) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    at = packed + head;
    end = packed + size - 4;
    token = taken(&at, end);
    if (token.kind != CONSTANT && token.kind != REAL && token.kind != ARRAY && token.kind != MAP)
        value = plain_value(packed + head, end);
    if (!value || value == Py_NotImplemented) { /* what is no text, too, is left to Python, which says so */
        PyErr_Clear();
        Py_XDECREF(value);
        Py_RETURN_NONE;
    }
    if (head == 1)
        return Py_BuildValue("(NO)", value, Py_None);
    for (index = 7; index >= 0; index--)
        moment = moment << 8 | packed[6 + index];
    memcpy(&expire, &moment, sizeof expire);
    return Py_BuildValue("(Nd)", value, expire);
}

/* Put the stored form of a key, of which a call adds less than `PART` bytes; return 0 if it is left to Python. Each tuple
   takes four bytes at least, so none is deep. */
static int put_key(Output *output, PyObject *key)
{
    Py_ssize_t size, index;
    int is_put = 0, overflow;
    if (output->used > DIGEST_ABOVE)
        return 0;
    if (PyUnicode_CheckExact(key)) {
        const char *text = PyUnicode_AsUTF8AndSize(key, &size);
        is_put = text && size <= DIGEST_ABOVE && put_size(output, 0xA0, 31, size, 0xD9, 0)
            && put(output, text, (size_t)size);
    } else if (PyBytes_CheckExact(key)) {
        size = PyBytes_Size(key);
        is_put = size <= DIGEST_ABOVE && put_size(output, 0, -1, size, 0xC4, 0)
            && put(output, PyBytes_AsString(key), (size_t)size);
    } else if (PyLong_CheckExact(key)) {
        uint64_t number = (uint64_t)PyLong_AsLongLongAndOverflow(key, &overflow); /* a negative one is large */
        is_put = !overflow
            && (number < 128              ? put_number(output, (unsigned)number, 0, 0)
                    : number <= UINT32_MAX ? put_number(output, 0xCE, number, 4)
                                           : put_number(output, 0xD3, number, 8));
    } else if (PyTuple_CheckExact(key) && (size = PyTuple_Size(key)) < 15) {
        is_put = put_number(output, 0x91 + (unsigned)size, 0, 0) && put(output, "\xC7\0\x20", 3); /* marks a tuple */
        for (index = 0; is_put && index < size; index++)
            is_put = put_key(output, PyTuple_GetItem(key, index));
    }
    PyErr_Clear();
    return is_put && output->used <= DIGEST_ABOVE;
}

/* Return a quarter of the hash of a stored key that is not digested. */
static uint64_t home_of(const uint8_t *stored, Py_ssize_t size, uint64_t modulus)
{
    unsigned __int128 left = 0;
    uint64_t number = 0;
    Py_ssize_t index;
    for (index = 0; size - index >= 8; index += 8)
        left = (left << 64 | (four_at(stored + index) << 32 | four_at(stored + index + 4))) % modulus;
    size -= index;
    for (stored += index, index = 0; index < size; index++)
        number = number << 8 | stored[index];
    return (uint64_t)((left << (8 * size) | number) % modulus);
}

/* Return (stored key, hash, store) of a text, a byte string or a number of 64 bits as a key, or a tuple of such; None for
   any other, and where the stored key would be digested. `args`: the key, the modulus, the list of stores. */
PyObject *located(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint8_t stored[DIGEST_ABOVE + PART];
    Output output = {.bytes = stored, .room = sizeof stored}; /* there is always room, so it is not moved */
    Py_ssize_t size;
    uint64_t modulus, home;
    PyObject *store;
    (void)module;
    if (!takes("located", count, 3) || !is_word(args[1], &modulus))
        return NULL;
    if (!put_key(&output, args[0]) || !modulus)
        Py_RETURN_NONE;
    home = home_of(stored, (Py_ssize_t)output.used, modulus);
    size = PyList_Size(args[2]);
    store = size > 0 ? PyList_GetItem(args[2], (Py_ssize_t)(home % SHARD_PRIME % (uint64_t)size)) : NULL;
    if (!store) /* what is no list has set an error */
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return Py_BuildValue("(y#KO)", (const char *)stored, (Py_ssize_t)output.used, (unsigned long long)home << 2, store);
}

/* Return the key of a row that is a text, a byte string or a number of 64 bits; None for any other, for one that is not
   in its form, and for one that does not belong to its place. `args`: the place, the stored key, the modulus. */
PyObject *key_at(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t place, modulus;
    char *stored;
    const uint8_t *at, *end;
    Py_ssize_t size;
    Token token;
    PyObject *key = NULL;
    (void)module;
    if (!takes("key_at", count, 3) || !is_word(args[2], &modulus))
        return NULL;
    if (!modulus || !is_word(args[0], &place) || !PyBytes_CheckExact(args[1])
        || PyBytes_AsStringAndSize(args[1], &stored, &size) < 0 || !size || size > DIGEST_ABOVE
        || home_of((const uint8_t *)stored, size, modulus) != place >> 2) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    at = (const uint8_t *)stored;
    end = at + size;
    token = taken(&at, end);
    size = end - at;
    /* In one form only: as short as it can be, but a byte string and a number have one width each. */
    if (token.kind == TEXT && token.number == (uint64_t)size && (!token.width || (token.width == 1 && size > 31)))
        key = PyUnicode_DecodeUTF8((const char *)at, size, NULL);
    else if (token.kind == BYTES && token.width == 1 && token.number == (uint64_t)size)
        key = PyBytes_FromStringAndSize((const char *)at, size);
    else if (!size && token.kind == SIGNED && token.width == 8 && token.number > UINT32_MAX)
        key = PyLong_FromLongLong((long long)token.number);
    else if (!size && token.kind == UNSIGNED && token.width == 4 && token.number > 127)
        key = PyLong_FromUnsignedLongLong(token.number);
    else if (!size && token.kind == SMALL && token.number < 128)
        key = PyLong_FromUnsignedLongLong(token.number);
    if (key)
        return key;
    PyErr_Clear(); /* what is not in UTF-8 is left to Python, which says so */
    Py_RETURN_NONE;
}
