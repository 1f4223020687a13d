/* The ICRCs of many packets at once, for rocekit.packets.icrc_columns: what rocekit.wire.icrc defines, without a call of
 * Python's for each packet and without the interpreter's lock. The CRC itself is ISA-L's, out of the library
 * that the Python package isal has loaded. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t (*crc_function)(uint32_t, const unsigned char *, uint64_t);

static crc_function crc32_of;

enum { UDP_BYTES = 8, BTH_BYTES = 12, ROOM = 256 };

/* Which bytes may change on the way, from the beginning of each header: rocekit.wire.icrc's tables. */
struct variant {
    const unsigned char *places;
    Py_ssize_t count;
};

struct variants {
    struct variant ipv4, ipv6, udp, bth;
};

static void ones(unsigned char *header, struct variant which)
{
    for (Py_ssize_t i = 0; i < which.count; i++)
        header[which.places[i]] = 0xFF;
}

static void mask(unsigned char *head, int64_t before_bth, int udp, const struct variants *of)
{
    if (head[0] >> 4 == 4) {
        ones(head, of->ipv4);
    } else {
        head[0] |= 0x0F; /* the traffic class begins in the version's byte */
        ones(head, of->ipv6);
    }
    if (udp)
        ones(head + before_bth - UDP_BYTES, of->udp);
    ones(head + before_bth, of->bth);
}

static int icrc_of(const unsigned char *packet, int64_t before_bth, int64_t length, int udp, uint32_t seed,
                   const struct variants *of, uint32_t *found)
{
    unsigned char near[ROOM], *head = near;
    int64_t masked = before_bth + BTH_BYTES;

    if (masked > ROOM && (head = malloc((size_t)masked)) == NULL)
        return -1;
    memcpy(head, packet, (size_t)masked);
    mask(head, before_bth, udp, of);
    *found = crc32_of(crc32_of(seed, head, (uint64_t)masked), packet + masked, (uint64_t)(length - masked));
    if (head != near)
        free(head);
    return 0;
}

static PyObject *load(PyObject *self, PyObject *args)
{
    const char *path;
    void *library;

    (void)self;
    if (!PyArg_ParseTuple(args, "s", &path))
        return NULL;
    library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    crc32_of = library == NULL ? NULL : (crc_function)(uintptr_t)dlsym(library, "crc32_gzip_refl");
    return PyBool_FromLong(crc32_of != NULL);
}

static PyObject *icrcs(PyObject *self, PyObject *args)
{
    Py_buffer data, start, bth, end, udp, out;
    struct variants of;
    unsigned int seed;
    int failed = 0;

    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*I(y#y#y#y#)w*", &data, &start, &bth, &end, &udp, &seed, &of.ipv4.places,
                          &of.ipv4.count, &of.ipv6.places, &of.ipv6.count, &of.udp.places, &of.udp.count,
                          &of.bth.places, &of.bth.count, &out))
        return NULL;
    {
        const unsigned char *bytes = data.buf, *over_udp = udp.buf;
        const int64_t *from = start.buf, *transport = bth.buf, *to = end.buf;
        uint32_t *found = out.buf;
        int64_t n = out.len / (Py_ssize_t)sizeof(uint32_t);

        if (crc32_of == NULL || start.len != n * 8 || bth.len != n * 8 || end.len != n * 8 || udp.len != n)
            failed = 1;
        for (int64_t i = 0; i < n && !failed; i++)
            failed = from[i] < 0 || transport[i] < from[i] + 12 + UDP_BYTES * over_udp[i] ||
                     to[i] < transport[i] + BTH_BYTES || to[i] > data.len;
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS
            for (int64_t i = 0; i < n && !failed; i++)
                failed = icrc_of(bytes + from[i], transport[i] - from[i], to[i] - from[i], over_udp[i], seed,
                                 &of, found + i) ? 2 : 0;
            Py_END_ALLOW_THREADS
        }
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&start);
    PyBuffer_Release(&bth);
    PyBuffer_Release(&end);
    PyBuffer_Release(&udp);
    PyBuffer_Release(&out);
    if (failed == 1) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths, or a packet outside the buffer");
        return NULL;
    }
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, "load(path): use the CRC of a library; whether it has one."},
    {"icrcs", icrcs, METH_VARARGS,
     "icrcs(buffer, start, bth, end, udp, seed, variants, out): int64 columns of places, uint8 of whether UDP stands\n"
     "before the BTH; variants: bytes that name those to be masked of IPv4, IPv6, UDP, BTH; fills out (uint32). ValueError: a packet outside the buffer."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "rocekit._icrcs", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__icrcs(void)
{
    return PyModule_Create(&module);
}
