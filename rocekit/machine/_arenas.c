/* Memory for Python's objects in large pages.

   Python asks the kernel for arenas of 256 KiB or 1 MiB, each mapped by itself and so in pages of 4 KiB. A page
   that is touched first takes the kernel 2 µs, and a new connection half a page; 2 MiB at once take it 100 to
   200 µs. See PyObject_SetArenaAllocator in Python's C API, and madvise(2) for MADV_HUGEPAGE. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/mman.h>

#define LARGE_PAGE ((size_t)2 << 20)
/* Addresses only: memory is taken when it is written to. */
#define STRETCH ((size_t)32 << 20)

/* What is left of the latest stretch; the interpreter's lock guards it. */
static char *next, *end;

static char *mapped(size_t size)
{
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* A new stretch, which begins with a large page; whether there is one. */
static int stretched(void)
{
    char *at = mapped(STRETCH + LARGE_PAGE);
    if (at == NULL)
        return 0;
    size_t before = -(uintptr_t)at & (LARGE_PAGE - 1);
    if (before)
        munmap(at, before);
    munmap(at + before + STRETCH, LARGE_PAGE - before);
    next = at + before;
    end = next + STRETCH;
    madvise(next, STRETCH, MADV_HUGEPAGE); /* refused: pages stay small */
    return 1;
}

static void *take(void *context, size_t size)
{
    (void)context;
    if (size > STRETCH || ((size_t)(end - next) < size && !stretched()))
        return mapped(size);
    char *arena = next;
    next += size;
    return arena;
}

/* Those from before are mapped as well. */
static void give_back(void *context, void *arena, size_t size)
{
    (void)context;
    munmap(arena, size);
}

static PyObject *use(PyObject *self, PyObject *nothing)
{
    (void)self, (void)nothing;
    PyObjectArenaAllocator allocator = {NULL, take, give_back};
    PyObject_SetArenaAllocator(&allocator);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"use", use, METH_NOARGS, "use(): from now on objects are in large pages."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "rocekit.machine._arenas", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__arenas(void)
{
    return PyModule_Create(&module);
}
