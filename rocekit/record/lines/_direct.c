/* What is done for each of hundreds of thousands of records a second: telling them apart, for rocekit.record.ring,
 * and the journal lines of the commonest ones, for rocekit.record.lines.direct_lines. The results are Python's, in a
 * fifth of the instructions. Of what is not alike in any respect Python makes the line. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "../interposer/record.h"

enum {
    CODES = 256,
    ROOM = 4096, /* of a line; its numbers and words take less than the half */
    SIGNALED = 2,
    INLINE = 8, /* enum ibv_send_flags */
    WITH_IMM = 2,
    WITH_INV = 8,        /* enum ibv_wc_flags */
    RECEIVED = 128,      /* IBV_WC_RECV: from it on, completions are of receives */
    WRITE_WITH_IMM = 1,  /* enum ibv_wr_opcode */
    SEND_WITH_IMM = 3,
    COMPARE_AND_SWAP = 5,
    PSN_MASK = 0xFFFFFF,
};
#define TIME_BITS 62

static PyObject *post_names[CODES], *done_names[CODES];
static PyObject *word_prefix, *word_transport, *word_sq_psn, *word_last, *word_signals, *word_alike, *word_local_ip;

struct text {
    char *end;
    char room[ROOM];
};

#define WORDS(text, words) put((text), "" words, sizeof words - 1)

static inline void put(struct text *text, const char *words, size_t size)
{
    memcpy(text->end, words, size);
    text->end += size;
}

static inline void put_string(struct text *text, PyObject *string)
{
    put(text, PyUnicode_DATA(string), (size_t)PyUnicode_GET_LENGTH(string));
}

static inline void put_number(struct text *text, uint64_t number)
{
    char digits[20], *first = digits + sizeof digits;

    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    put(text, first, (size_t)(digits + sizeof digits - first));
}

#define NUMBER(text, words, number) (WORDS(text, words), put_number(text, number))

static int is_plain(PyObject *string)
{
    return string && PyUnicode_Check(string) && PyUnicode_IS_COMPACT_ASCII(string);
}

static void begin(struct text *text, const struct record_slot *slot, PyObject *tail)
{
    NUMBER(text, "{\"time_ns\":", slot->real);
    NUMBER(text, ",\"mono_ns\":", slot->mono);
    put_string(text, tail);
    if (slot->thread)
        NUMBER(text, ",\"thread\":", slot->thread);
}

/* Each of these: 1 if the line is made, 0 if Python is to make it, -1 with an exception. */

static int completion(struct text *text, const struct record_slot *slot, PyObject *tail, PyObject *qp,
                      PyObject *prefix)
{
    struct record_wc wc;
    int datagram;

    memcpy(&wc, slot->payload, sizeof wc);
    if (wc.status || !done_names[wc.opcode])
        return 0;
    if (wc.opcode >= RECEIVED && !(wc.flags & WITH_IMM) && wc.flags & WITH_INV)
        return 0;
    begin(text, slot, tail);
    WORDS(text, ",\"event\":\"wc_polled\"");
    put_string(text, prefix);
    NUMBER(text, ",\"wr_id\":", wc.wr_id);
    WORDS(text, ",\"status\":\"SUCCESS\",\"opcode\":\"");
    put_string(text, done_names[wc.opcode]);
    WORDS(text, "\"");
    if (wc.opcode >= RECEIVED || (wc.opcode >= 2 && wc.opcode <= 4)) /* RDMA_READ and the atomics */
        NUMBER(text, ",\"byte_len\":", wc.byte_len);
    if (wc.opcode >= RECEIVED) {
        if (wc.flags & WITH_IMM)
            NUMBER(text, ",\"imm\":", wc.imm);
        if (wc.src_qpn) {
            PyObject *transport = PyObject_GetAttr(qp, word_transport);

            if (!transport)
                return -1;
            datagram = PyUnicode_Check(transport) && PyUnicode_CompareWithASCIIString(transport, "UD") == 0;
            Py_DECREF(transport);
            if (datagram)
                NUMBER(text, ",\"src_qpn\":", wc.src_qpn);
        }
    }
    WORDS(text, "}");
    return 1;
}

static void put_sge(struct text *text, const struct record_item *sge)
{
    NUMBER(text, ",\"sges\":[{\"addr\":", sge->addr);
    NUMBER(text, ",\"length\":", sge->length);
    NUMBER(text, ",\"lkey\":", sge->lkey);
    WORDS(text, "}]");
}

static int receive(struct text *text, const struct record_slot *slot, PyObject *tail, PyObject *prefix)
{
    struct record_recv recv;

    memcpy(&recv, slot->payload, sizeof recv);
    if (recv.srq || recv.error || recv.cut || recv.items != 1)
        return 0;
    begin(text, slot, tail);
    WORDS(text, ",\"event\":\"recv_posted\"");
    put_string(text, prefix);
    NUMBER(text, ",\"wr_id\":", recv.wr_id);
    NUMBER(text, ",\"length\":", recv.sge.length);
    put_sge(text, &recv.sge);
    WORDS(text, "}");
    return 1;
}

/* Keep when a QP's last send was posted. */
static int keep_last(PyObject *qp, uint64_t mono)
{
    PyObject *last = PyObject_GetAttr(qp, word_last);
    unsigned long long before = last ? PyLong_AsUnsignedLongLong(last) : 0;
    int failed = 0;

    Py_XDECREF(last);
    if (PyErr_Occurred())
        return -1;
    if (mono > before) {
        if (!(last = PyLong_FromUnsignedLongLong(mono)))
            return -1;
        failed = PyObject_SetAttr(qp, word_last, last);
        Py_DECREF(last);
    }
    return failed;
}

/* Where an address handle sends to: *remote is NULL where that is not known. 0 if Python is to look: the handle is of a
 * parent process, or the QP's local address is not the handle's yet, for which there is a line of its own. */
static int address(PyObject *handles, const struct record_item *item, PyObject *qp, PyObject **remote)
{
    PyObject *key = PyLong_FromUnsignedLongLong(item->ah), *found, *local;
    int same = 1;

    if (!key)
        return -1;
    found = PyDict_GetItemWithError(handles, key); /* borrowed: nothing below changes the dictionary */
    Py_DECREF(key);
    if (!found)
        return PyErr_Occurred() ? -1 : 0;
    if (!PyTuple_CheckExact(found) || PyTuple_GET_SIZE(found) != 2)
        return 0;
    if (PyTuple_GET_ITEM(found, 0) != Py_None) {
        if (!(local = PyObject_GetAttr(qp, word_local_ip)))
            return -1;
        same = PyUnicode_Check(local) && PyUnicode_Check(PyTuple_GET_ITEM(found, 0)) &&
               PyUnicode_Compare(local, PyTuple_GET_ITEM(found, 0)) == 0;
        Py_DECREF(local);
    }
    *remote = PyTuple_GET_ITEM(found, 1);
    if (*remote == Py_None)
        *remote = NULL;
    else if (!is_plain(*remote) || PyUnicode_GET_LENGTH(*remote) > 64)
        return 0;
    return same;
}

static int send(struct text *text, const struct record_slot *slot, PyObject *tail, PyObject *qp,
                PyObject *prefix, PyObject *handles)
{
    struct record_send send;
    struct record_item items[2], *sge = items;
    uint64_t before = slot[1].before;
    PyObject *value, *remote = NULL;
    int signaled, known;

    memcpy(&send, slot->payload, sizeof send);
    memcpy(items, slot[1].continued, sizeof items);
    if (!post_names[send.opcode] || send.error || before == OVERLAPPED)
        return 0;
    if (send.flags & ~(SIGNALED | INLINE | SEND_EXTENDED | SEND_ATOMIC | SEND_UD))
        return 0;
    if (send.flags & SEND_ATOMIC)
        sge++;
    else if (send.opcode >= COMPARE_AND_SWAP)
        return 0;
    if (send.flags & SEND_UD) {
        if (send.flags & SEND_ATOMIC)
            return 0;
        sge++;
        if ((known = address(handles, items, qp, &remote)) <= 0)
            return known;
    }
    if (send.items != 1 + (sge - items) || sge->length != send.length)
        return 0;
    if (keep_last(qp, slot->mono) < 0)
        return -1;
    signaled = send.flags & SIGNALED;
    if (!signaled) {
        if (!(value = PyObject_GetAttr(qp, word_signals)))
            return -1;
        signaled = PyObject_IsTrue(value);
        Py_DECREF(value);
        if (signaled < 0)
            return -1;
    }
    begin(text, slot, tail);
    WORDS(text, ",\"event\":\"wr_posted\"");
    put_string(text, prefix);
    NUMBER(text, ",\"wr_id\":", send.wr_id);
    WORDS(text, ",\"opcode\":\"");
    put_string(text, post_names[send.opcode]);
    NUMBER(text, "\",\"length\":", send.length);
    if (signaled)
        WORDS(text, ",\"signaled\":true");
    else
        WORDS(text, ",\"signaled\":false");
    put_sge(text, sge);
    if (send.flags & SEND_UD) {
        NUMBER(text, ",\"dest_qpn\":", items->remote_qpn);
        NUMBER(text, ",\"qkey\":", items->remote_qkey);
        if (remote) {
            WORDS(text, ",\"dest_ip\":\"");
            put_string(text, remote);
            WORDS(text, "\"");
        }
    } else if (sge != items) {
        if (send.opcode == COMPARE_AND_SWAP)
            NUMBER(text, ",\"compare\":", items->compare);
        NUMBER(text, ",\"swap_add\":", items->swap_add);
    }
    if (send.opcode == WRITE_WITH_IMM || send.opcode == SEND_WITH_IMM)
        NUMBER(text, ",\"imm\":", send.imm);
    if (send.opcode <= WRITE_WITH_IMM || send.opcode > SEND_WITH_IMM) { /* all but the SENDs */
        NUMBER(text, ",\"remote_va\":", send.remote_va);
        NUMBER(text, ",\"rkey\":", send.rkey);
    }
    if (send.flags & INLINE)
        WORDS(text, ",\"inline\":true");
    if (before != NO_PSN) {
        if (!(value = PyObject_GetAttr(qp, word_sq_psn)))
            return -1;
        if (value != Py_None)
            NUMBER(text, ",\"psn\":", (PyLong_AsUnsignedLongLongMask(value) + before) & PSN_MASK);
        Py_DECREF(value);
        if (PyErr_Occurred())
            return -1;
    }
    WORDS(text, "}");
    return 1;
}

static PyObject *line_of(PyObject *record, PyObject *qps, PyObject *tail, PyObject *handles)
{
    struct text text = {.end = text.room};
    struct record_slot slots[2];
    PyObject *key, *qp, *prefix;
    Py_ssize_t size;
    int made = 0;

    size = PyBytes_GET_SIZE(record);
    if (size != sizeof *slots && size != sizeof slots)
        Py_RETURN_NONE;
    memcpy(slots, PyBytes_AS_STRING(record), (size_t)size);
    if (slots->type != (size == sizeof slots ? RECORD_SEND : RECORD_WC) && (slots->type != RECORD_RECV || size == sizeof slots))
        Py_RETURN_NONE;
    if (slots->mono >> TIME_BITS || slots->real >> TIME_BITS)
        Py_RETURN_NONE;
    if (!(key = Py_BuildValue("(BI)", slots->device, slots->number)))
        return NULL;
    qp = PyDict_GetItemWithError(qps, key);
    Py_DECREF(key);
    if (!qp) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    Py_INCREF(qp);
    prefix = PyObject_GetAttr(qp, word_prefix);
    if (is_plain(prefix) && is_plain(tail) &&
        PyUnicode_GET_LENGTH(prefix) + PyUnicode_GET_LENGTH(tail) < ROOM / 2) {
        if (slots->type == RECORD_WC)
            made = completion(&text, slots, tail, qp, prefix);
        else if (slots->type == RECORD_RECV)
            made = receive(&text, slots, tail, prefix);
        else
            made = send(&text, slots, tail, qp, prefix, handles);
    }
    Py_XDECREF(prefix);
    Py_DECREF(qp);
    if (made < 0 || PyErr_Occurred())
        return NULL;
    if (!made)
        Py_RETURN_NONE;
    return PyUnicode_DecodeASCII(text.room, text.end - text.room, NULL);
}

static int are_parts(PyObject *record, PyObject *qps, PyObject *tail, PyObject *handles)
{
    return PyBytes_Check(record) && PyDict_Check(qps) && PyUnicode_Check(tail) && PyDict_Check(handles);
}

static PyObject *line(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    (void)self;
    if (count != 4 || !are_parts(given[0], given[1], given[2], given[3])) {
        PyErr_SetString(PyExc_TypeError, "line(record, qps, tail, handles)");
        return NULL;
    }
    return line_of(given[0], given[1], given[2], given[3]);
}

/* The line of a record that waits, or NULL: without an exception if Python is to look at it. */
static PyObject *line_of_waiting(PyObject *one, unsigned long long until)
{
    PyObject *alike, *made = NULL;
    unsigned long long mono;

    if (!PyTuple_CheckExact(one) || PyTuple_GET_SIZE(one) != 5 || PyTuple_GET_ITEM(one, 4) != Py_True)
        return NULL;
    mono = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(one, 0));
    if (PyErr_Occurred() || mono > until)
        return NULL;
    if (!(alike = PyObject_GetAttr(PyTuple_GET_ITEM(one, 3), word_alike)))
        return NULL;
    if (PyTuple_CheckExact(alike) && PyTuple_GET_SIZE(alike) == 3 &&
        are_parts(PyTuple_GET_ITEM(one, 2), PyTuple_GET_ITEM(alike, 0), PyTuple_GET_ITEM(alike, 1),
                  PyTuple_GET_ITEM(alike, 2)))
        made = line_of(PyTuple_GET_ITEM(one, 2), PyTuple_GET_ITEM(alike, 0), PyTuple_GET_ITEM(alike, 1),
                       PyTuple_GET_ITEM(alike, 2));
    Py_DECREF(alike);
    if (made == Py_None)
        Py_CLEAR(made);
    return made;
}

/* Lines of records that wait, up to the first one that Python is to look at. */
static PyObject *run(PyObject *self, PyObject *given)
{
    PyObject *waiting, *out, *one, *made;
    Py_ssize_t at, most, counts[RECORD_WC + 1] = {0};
    unsigned long long until;
    unsigned char kind;
    int failed;

    (void)self;
    if (!PyArg_ParseTuple(given, "O!nKnO!", &PyList_Type, &waiting, &at, &until, &most, &PyList_Type, &out))
        return NULL;
    if (at < 0) {
        PyErr_SetString(PyExc_ValueError, "no place in a list");
        return NULL;
    }
    for (; most > 0 && at < PyList_GET_SIZE(waiting); at++, most--) {
        one = PyList_GET_ITEM(waiting, at);
        Py_INCREF(one);
        if (!(made = line_of_waiting(one, until))) {
            Py_DECREF(one);
            if (PyErr_Occurred())
                return NULL;
            break;
        }
        kind = (unsigned char)PyBytes_AS_STRING(PyTuple_GET_ITEM(one, 2))[8];
        failed = PyList_Append(out, made);
        Py_DECREF(made);
        Py_DECREF(one);
        if (failed)
            return NULL;
        counts[kind]++; /* line_of() makes lines of these kinds only */
    }
    return Py_BuildValue("nnnn", at, counts[RECORD_SEND], counts[RECORD_RECV], counts[RECORD_WC]);
}

/* Records in slots, whole ones, as rocekit.record.ring.tagged gives them. */
static PyObject *tagged(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *found, *one, *record, *mono, *number;
    const unsigned char *raw;
    Py_ssize_t at = 0, size, after;
    long long next;
    uint64_t when;

    (void)self;
    if (count != 3 || !PyBytes_Check(given[0])) {
        PyErr_SetString(PyExc_TypeError, "tagged(slots, count, lines)");
        return NULL;
    }
    next = PyLong_AsLongLong(given[1]);
    if ((next == -1 && PyErr_Occurred()) || !(found = PyList_New(0)))
        return NULL;
    raw = (const unsigned char *)PyBytes_AS_STRING(given[0]);
    size = PyBytes_GET_SIZE(given[0]);
    for (; size - at >= RECORD_SLOT; at = after) {
        after = at + RECORD_SLOT * (raw[at + 9] ? raw[at + 9] : 1);
        if (after > size)
            break;
        memcpy(&when, raw + at + 16, sizeof when);
        mono = PyLong_FromUnsignedLongLong(when);
        number = PyLong_FromLongLong(++next);
        record = PyBytes_FromStringAndSize((const char *)raw + at, after - at);
        one = mono && number && record ? PyTuple_Pack(5, mono, number, record, given[2], Py_True) : NULL;
        Py_XDECREF(mono);
        Py_XDECREF(number);
        Py_XDECREF(record);
        if (!one || PyList_Append(found, one) < 0) {
            Py_XDECREF(one);
            Py_DECREF(found);
            return NULL;
        }
        Py_DECREF(one);
    }
    return Py_BuildValue("(Nn)", found, at);
}

static int keep(PyObject *names, PyObject **kept)
{
    PyObject *code, *name;
    Py_ssize_t at = 0;
    long number;

    while (PyDict_Next(names, &at, &code, &name)) {
        number = PyLong_AsLong(code);
        if (number < 0 || number >= CODES || !is_plain(name) || PyUnicode_GET_LENGTH(name) > 64) {
            PyErr_SetString(PyExc_ValueError, "no name of an opcode");
            return -1;
        }
        Py_INCREF(name);
        Py_XSETREF(kept[number], name);
    }
    return 0;
}

static PyObject *names(PyObject *self, PyObject *given)
{
    PyObject *posts, *done;

    (void)self;
    if (!PyArg_ParseTuple(given, "O!O!", &PyDict_Type, &posts, &PyDict_Type, &done) ||
        keep(posts, post_names) < 0 || keep(done, done_names) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"line", (PyCFunction)(void (*)(void))line, METH_FASTCALL,
     "line(record, qps, tail, handles): the record's line, or None if Python is to make it."},
    {"run", run, METH_VARARGS,
     "run(waiting, at, until, most, out): lines of records that wait, and where it stopped."},
    {"tagged", (PyCFunction)(void (*)(void))tagged, METH_FASTCALL,
     "tagged(slots, count, lines): whole records, each in a tuple, and the bytes that they take."},
    {"names", names, METH_VARARGS, "names(posts, completions): the opcodes' names that lines have, by number."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_direct", "What is done for each record.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__direct(void)
{
    word_prefix = PyUnicode_InternFromString("prefix");
    word_transport = PyUnicode_InternFromString("transport");
    word_sq_psn = PyUnicode_InternFromString("sq_psn");
    word_last = PyUnicode_InternFromString("last_post_ns");
    word_signals = PyUnicode_InternFromString("signals_all");
    word_alike = PyUnicode_InternFromString("alike");
    word_local_ip = PyUnicode_InternFromString("local_ip");
    if (!word_local_ip || !word_alike || !word_prefix || !word_transport || !word_sq_psn || !word_last || !word_signals)
        return NULL;
    return PyModule_Create(&module);
}
