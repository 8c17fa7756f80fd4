/* Plain data in msgpack: None, booleans, integers of 64 bits, floats, texts, byte strings, lists and dictionaries.

   What a scan has found sound is read without looking again, and without making a list longer than its bytes account
   for. Everything else is left to Python: extensions, damage, floats of 32 bits. */

#include <string.h>

#include "_types.h"

#define DEEPEST 400 /* MAX_DEPTH of msgpack_reader.py */
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

/* Tell whether all of it is one plain value; `has_bytes`: whether byte strings are in it. */
static int is_sound(const uint8_t *at, const uint8_t *end, int *has_bytes)
{
    uint64_t left[DEEPEST + 1] = {1}; /* what is still to come at each depth */
    int depth = 0;
    for (*has_bytes = 0;;) {
        Token token;
        while (!left[depth])
            if (!depth--)
                return at == end;
        left[depth]--;
        token = taken(&at, end);
        *has_bytes |= token.kind == BYTES;
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

static int is_plain_and_sound(PyObject *payload, const uint8_t **at, const uint8_t **end, int *has_bytes)
{
    char *content;
    Py_ssize_t size;
    if (!PyBytes_CheckExact(payload) || PyBytes_AsStringAndSize(payload, &content, &size) < 0)
        return 0; /* anything else may change after the scan */
    *at = (const uint8_t *)content;
    *end = *at + size;
    return is_sound(*at, *end, has_bytes);
}

PyObject *has_plain_tokens(PyObject *module, PyObject *payload)
{
    const uint8_t *at, *end;
    int has_bytes;
    (void)module;
    return PyBool_FromLong(is_plain_and_sound(payload, &at, &end, &has_bytes) && !has_bytes);
}

PyObject *read_plain(PyObject *module, PyObject *payload)
{
    const uint8_t *at, *end;
    Key keys[KEYS] = {{0}};
    PyObject *value;
    int has_bytes, index;
    (void)module;
    if (!is_plain_and_sound(payload, &at, &end, &has_bytes))
        return Py_NewRef(Py_NotImplemented);
    value = value_at(&at, end, keys, 0);
    for (index = 0; index < KEYS; index++)
        Py_XDECREF(keys[index].text);
    return value;
}
