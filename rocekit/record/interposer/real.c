/*
 * Finding the functions that the wrappers replace, and giving the wrappers to programs that look them up by name.
 *
 * UCX, NCCL and libfabric load libibverbs while they run. Linked symbols bind to the wrappers, because the preloaded
 * library comes first; those that dlsym or dlvsym finds would not, so these two are wrapped, too. glibc's own dlsym
 * is found in its symbol table.
 */
#define _GNU_SOURCE
#include "verbs.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef void *(*dlsym_type)(void *, const char *);
typedef void *(*dlvsym_type)(void *, const char *, const char *);

static _Atomic(dlsym_type) real_dlsym;
static _Atomic(dlvsym_type) real_dlvsym;

static struct wrapped {
    const char *library, *version, *name;
    void *wrapper;
    _Atomic(void *) real;
} wrapped[] = {
#define WRAPPED(library, version, name) {library, version, #name, (void *)name, NULL},
#include "wrapped.h"
#undef WRAPPED
};

/* ------------------------------------------------------------------ glibc's own */

struct search {
    const char *name;
    void *found;
};

/* Look a defined function up in an object's GNU hash table. */
static void *in_object(const struct dl_phdr_info *object, const ElfW(Dyn) *dynamic, const char *name)
{
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL, *buckets, *chain;
    uint32_t hash = 5381, i;
    const char *c;

    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) at = dynamic->d_un.d_ptr;

        if (dynamic->d_tag != DT_SYMTAB && dynamic->d_tag != DT_STRTAB && dynamic->d_tag != DT_GNU_HASH)
            continue;
        if (at < object->dlpi_addr)
            at += object->dlpi_addr; /* not relocated: the vDSO, and glibc on some machines */
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)at;
        else if (dynamic->d_tag == DT_STRTAB)
            strings = (const char *)at;
        else
            table = (const uint32_t *)at;
    }
    if (!symbols || !strings || !table || !table[0])
        return NULL;
    for (c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / 4);
    chain = buckets + table[0];
    i = buckets[hash % table[0]];
    if (i < table[1])
        return NULL;
    do {
        uint32_t of = chain[i - table[1]];

        if ((of | 1) == (hash | 1) && !strcmp(strings + symbols[i].st_name, name) && symbols[i].st_shndx)
            return (void *)(object->dlpi_addr + symbols[i].st_value);
        if (of & 1)
            return NULL;
    } while (i++, true);
}

static int visit(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    int i;

    (void)size;
    /* In libc from glibc 2.34 on, before in libdl. */
    if (!object->dlpi_name || (!strstr(object->dlpi_name, "/libc.so") && !strstr(object->dlpi_name, "/libdl.so")))
        return 0;
    for (i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            search->found = in_object(
                object, (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr), search->name);
    return search->found != NULL;
}

static void *from_glibc(const char *name)
{
    struct search search = {name, NULL};

    dl_iterate_phdr(visit, &search);
    if (!search.found) {
        fprintf(stderr, "rocekit record: there is no %s in this process\n", name);
        abort();
    }
    return search.found;
}

static inline dlsym_type the_dlsym(void)
{
    dlsym_type found = atomic_load_explicit(&real_dlsym, memory_order_relaxed);

    if (!found) {
        found = (dlsym_type)from_glibc("dlsym");
        atomic_store_explicit(&real_dlsym, found, memory_order_relaxed);
    }
    return found;
}

static inline dlvsym_type the_dlvsym(void)
{
    dlvsym_type found = atomic_load_explicit(&real_dlvsym, memory_order_relaxed);

    if (!found) {
        found = (dlvsym_type)from_glibc("dlvsym");
        atomic_store_explicit(&real_dlvsym, found, memory_order_relaxed);
    }
    return found;
}

/* ------------------------------------------------------------------ the replaced functions */

struct library {
    const char *stem;
    char path[512];
};

/* A library under another name: a wheel's copy may be called libibverbs-0a1b2c3d.so.1. */
static int named_like(struct dl_phdr_info *object, size_t size, void *data)
{
    struct library *library = data;
    const char *base = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;

    (void)size;
    if (!base || strncmp(base + 1, library->stem, strcspn(library->stem, ".")) ||
        strlen(object->dlpi_name) >= sizeof library->path)
        return 0;
    strcpy(library->path, object->dlpi_name);
    return 1;
}

void *library_function(const char *stem, const char *version, const char *name)
{
    struct library library = {.stem = stem};
    void *found = the_dlvsym()(RTLD_NEXT, name, version), *handle;

    if (found)
        return found;
    if (!dl_iterate_phdr(named_like, &library))
        return NULL;
    handle = dlopen(library.path, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return NULL;
    found = the_dlvsym()(handle, name, version);
    return found ? found : the_dlsym()(handle, name);
}

void *real_function(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof wrapped / sizeof *wrapped; i++) {
        void *real;

        if (strcmp(wrapped[i].name, name))
            continue;
        real = atomic_load_explicit(&wrapped[i].real, memory_order_acquire);
        if (!real)
            real = library_function(wrapped[i].library, wrapped[i].version, name);
        if (!real)
            break;
        atomic_store_explicit(&wrapped[i].real, real, memory_order_release);
        return real;
    }
    fprintf(stderr, "rocekit record: %s was called, and no library in this process has it\n", name);
    abort();
}

/* ------------------------------------------------------------------ by name */

/* The wrapper of a function that a program found by name in one of the libraries. */
static void *stand_in(void *found, const char *name)
{
    size_t i;
    Dl_info where;

    for (i = 0; found && i < sizeof wrapped / sizeof *wrapped; i++) {
        const char *base;

        if (strcmp(wrapped[i].name, name))
            continue;
        if (found == wrapped[i].wrapper || !dladdr(found, &where) || !where.dli_fname)
            break;
        base = strrchr(where.dli_fname, '/');
        base = base ? base + 1 : where.dli_fname;
        if (strncmp(base, wrapped[i].library, strcspn(wrapped[i].library, ".")))
            break;
        atomic_store_explicit(&wrapped[i].real, found, memory_order_release);
        return wrapped[i].wrapper;
    }
    return found;
}

static inline bool may_be_wrapped(void *handle, const char *name)
{
    return handle != RTLD_NEXT && name &&
           (!strncmp(name, "ibv_", 4) || !strncmp(name, "rdma_", 5) || !strncmp(name, "mlx5dv_", 7));
}

/* Both end in a jump, not a call: RTLD_NEXT and RTLD_DEFAULT depend on the caller, which glibc finds by the return
 * address. (GCC and clang make it a jump from -O2 on; tests/record/test_record.py checks this.) */
EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    if (__builtin_expect(may_be_wrapped(handle, name), 0))
        return stand_in(the_dlsym()(handle, name), name);
    return the_dlsym()(handle, name);
}

EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    size_t i;

    if (__builtin_expect(may_be_wrapped(handle, name), 0))
        for (i = 0; i < sizeof wrapped / sizeof *wrapped; i++)
            if (!strcmp(wrapped[i].name, name) && !strcmp(wrapped[i].version, version))
                return stand_in(the_dlvsym()(handle, name, version), name);
    return the_dlvsym()(handle, name, version);
}
