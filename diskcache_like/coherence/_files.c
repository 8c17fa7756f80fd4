/* Read a value file in one call. */

#define _GNU_SOURCE /* O_DIRECTORY and O_NOFOLLOW */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "_types.h"

/* Open a regular file that has one name and `size` bytes; return its descriptor, or -1. Neither it nor its folder may be
   a link, and one that is no regular file does not block. */
static int opened(const char *folder, const char *last, Py_ssize_t size)
{
    struct stat status;
    int file, parent = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (parent < 0)
        return -1;
    file = openat(parent, last, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    close(parent);
    if (file >= 0
        && (fstat(file, &status) || !S_ISREG(status.st_mode) || status.st_nlink > 1 || status.st_size != size)) {
        close(file);
        return -1;
    }
    return file;
}

/* Fill memory from a file, and close it; return whether all of it was there. */
static int is_filled(int file, char *memory, Py_ssize_t size)
{
    Py_ssize_t got, done = 0;
    while (memory && done < size && (got = read(file, memory + done, (size_t)(size - done))) > 0)
        done += got;
    close(file);
    return done == size;
}

/* Return the content of a value file, None where Python has to find out what is wrong. `args`: the folder, the file's
   name in it, its size or the memory to fill. Memory is only allocated for a file that has this size. */
PyObject *read_file(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer given = {0};
    PyObject *content = NULL;
    const char *folder, *last;
    char *memory = NULL;
    int file, is_done = 0;
    (void)module;
    if (!takes("read_file", count, 3))
        return NULL;
    if (PyLong_Check(args[2]))
        given.len = PyLong_AsSsize_t(args[2]);
    else if (PyObject_GetBuffer(args[2], &given, PyBUF_WRITABLE))
        return NULL;
    if (PyErr_Occurred() || !(folder = PyUnicode_AsUTF8AndSize(args[0], NULL))
        || !(last = PyUnicode_AsUTF8AndSize(args[1], NULL))) {
        PyErr_Clear(); /* a path that is not in UTF-8, a size that no file has */
        folder = last = "";
    }
    Py_BEGIN_ALLOW_THREADS
    file = opened(folder, last, given.len);
    Py_END_ALLOW_THREADS
    if (file >= 0) {
        content = given.obj ? Py_NewRef(args[2]) : PyBytes_FromStringAndSize(NULL, given.len);
        memory = given.obj ? given.buf : content ? PyBytes_AsString(content) : NULL;
        Py_BEGIN_ALLOW_THREADS
        is_done = is_filled(file, memory, given.len);
        Py_END_ALLOW_THREADS
    }
    if (given.obj)
        PyBuffer_Release(&given);
    if (is_done)
        return content;
    Py_XDECREF(content);
    PyErr_Clear(); /* set if there was no memory */
    Py_RETURN_NONE;
}
