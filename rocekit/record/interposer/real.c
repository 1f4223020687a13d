/*
 * Finding the functions that the wrappers replace, and giving the wrappers to programs that look them up by name.
 *
 * UCX, NCCL and libfabric load libibverbs while they run. Linked symbols bind to the wrappers, because the preloaded
 * library comes first; those that dlsym or dlvsym finds would not, so these two are wrapped, too. glibc's own dlsym
 * is found in its symbol table.
 *
 * A process may have several copies of a library, or load, unload and load it again: what a wrapper calls is looked
 * up anew after an object was unloaded.
 */
#define _GNU_SOURCE
#include "verbs.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef void *(*dlsym_type)(void *, const char *);
typedef void *(*dlvsym_type)(void *, const char *, const char *);
typedef void *(*dlopen_type)(const char *, int);
typedef int (*dlclose_type)(void *);
typedef void *(*dlmopen_type)(Lmid_t, const char *, int);

static _Atomic(dlsym_type) real_dlsym;
static _Atomic(dlvsym_type) real_dlvsym;
static _Atomic(dlopen_type) real_dlopen;
static _Atomic(dlmopen_type) real_dlmopen;
static _Atomic(dlclose_type) real_dlclose;

/* Every WRAPPER; the linker makes the two names. */
extern struct wrapped __start_rocekit_wrapped[] __attribute__((visibility("hidden")));
extern struct wrapped __stop_rocekit_wrapped[] __attribute__((visibility("hidden")));

#define EACH_WRAPPED(w) for (w = __start_rocekit_wrapped; w < __stop_rocekit_wrapped; w++)

/* ------------------------------------------------------------------ glibc's own */

static bool is_same(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* Look a defined function up in an object's GNU hash table. */
static void *in_object(const struct link_map *object, const char *name)
{
    const ElfW(Dyn) *dynamic = object->l_ld;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL, *buckets, *chain;
    uint32_t hash = 5381, i;
    const char *c;

    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) at = dynamic->d_un.d_ptr;

        if (dynamic->d_tag != DT_SYMTAB && dynamic->d_tag != DT_STRTAB && dynamic->d_tag != DT_GNU_HASH)
            continue;
        if (at < object->l_addr)
            at += object->l_addr; /* not relocated: the vDSO, and glibc on some machines */
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

        if ((of | 1) == (hash | 1) && is_same(strings + symbols[i].st_name, name) && symbols[i].st_shndx)
            return (void *)(object->l_addr + symbols[i].st_value);
        if (of & 1)
            return NULL;
    } while (i++, true);
}

/* Whether this is glibc's library of that name: /lib/x/NAME.6, in some places NAME-2.28.so. */
static bool is_glibc(const char *path, const char *name)
{
    const char *base = path, *c;

    for (c = path; *c; c++)
        if (*c == '/')
            base = c + 1;
    while (*name && *base == *name)
        base++, name++;
    return !*name && (*base == '.' || *base == '-');
}

/* This may run before the libraries of a sanitizer are ready, which replace dl_iterate_phdr and strcmp: nothing is
 * called here. */
static void *from_glibc(const char *name)
{
    const struct link_map *object;
    void *found;

    /* In libc from glibc 2.34 on, before in libdl. */
    for (object = _r_debug.r_map; object; object = object->l_next)
        if ((is_glibc(object->l_name, "libc") || is_glibc(object->l_name, "libdl")) &&
            (found = in_object(object, name)))
            return found;
    fprintf(stderr, "rocekit record: there is no %s in this process\n", name);
    abort();
}

/* The next function of this name: that of another preloaded library, which may stand before glibc's. */
static void *next_one(const char *name)
{
    /* What is next after a library that was loaded later is not defined. */
    void *found = record_session ? NULL : ((dlsym_type)from_glibc("dlsym"))(RTLD_NEXT, name);

    return found ? found : from_glibc(name);
}

#define THE(name)                                                                                            \
    static inline name##_type the_##name(void)                                                               \
    {                                                                                                        \
        name##_type found = atomic_load_explicit(&real_##name, memory_order_relaxed);                        \
                                                                                                             \
        if (!found) {                                                                                        \
            found = (name##_type)next_one(#name);                                                            \
            atomic_store_explicit(&real_##name, found, memory_order_relaxed);                                \
        }                                                                                                    \
        return found;                                                                                        \
    }

THE(dlsym)
THE(dlvsym)
THE(dlopen)
THE(dlmopen)
THE(dlclose)

/* ------------------------------------------------------------------ the replaced functions */

bool is_library(const char *path, const char *library)
{
    const char *base = path ? strrchr(path, '/') : NULL;

    base = base ? base + 1 : path;
    return base && !strncmp(base, library, strcspn(library, "."));
}

static uintptr_t object_of(const void *address)
{
    Dl_info where;

    return address && dladdr(address, &where) ? (uintptr_t)where.dli_fbase : 0;
}

/* How often objects were unloaded. It is counted here, because the linker's own count takes its lock to read: the child
 * of a fork could wait for it for ever. */
static _Atomic uint64_t unloads;

/* A handle of the object that an address is in. It needs no dlclose to stay valid as long as the object. */
static void *handle_of(const void *address)
{
    struct link_map *map = NULL;
    Dl_info where;
    void *handle;

    if (!address || !dladdr1(address, &where, (void **)&map, RTLD_DL_LINKMAP) || !map || !*map->l_name)
        return NULL;
    handle = the_dlopen()(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle)
        the_dlclose()(handle);
    return handle;
}

/* What a reference to a function binds to in a scope: the first that has the name, and of that object's versions
 * the one asked for. Another preloaded library has no version of it, and comes before the library itself. */
static void *bound_in(void *scope, const char *version, const char *name)
{
    void *exact = ((dlvsym_type)from_glibc("dlvsym"))(scope, name, version);
    void *first = ((dlsym_type)from_glibc("dlsym"))(scope, name);

    return first && (!exact || object_of(first) != object_of(exact)) ? first : exact;
}

struct copies {
    const char *library;
    uintptr_t wanted; /* its first address, or 0 */
    char path[512];
    uintptr_t found;
};

/* A library under any name: a wheel's copy may be called libibverbs-0a1b2c3d.so.1. */
static int look_for_copy(struct dl_phdr_info *object, size_t size, void *data)
{
    struct copies *copies = data;

    (void)size;
    if (!object->dlpi_name || !is_library(object->dlpi_name, copies->library) ||
        strlen(object->dlpi_name) >= sizeof copies->path)
        return 0;
    if (copies->found && copies->wanted != object->dlpi_addr)
        return 0;
    strcpy(copies->path, object->dlpi_name);
    copies->found = object->dlpi_addr;
    return copies->found == copies->wanted;
}

/* Of each library, the copy whose functions a program has by name, if they cannot be told by who calls. */
static struct chosen {
    const char *library;
    _Atomic uintptr_t copy;
} chosen[] = {{VERBS, 0}, {RDMACM, 0}, {MLX5, 0}, {EFA, 0}};

static struct chosen *chosen_of(const char *library)
{
    size_t i = 0;

    while (i < sizeof chosen / sizeof *chosen - 1 && strcmp(chosen[i].library, library))
        i++;
    return &chosen[i];
}

/* The chosen copy, if it is still loaded; else the first, which is the chosen one from now on. */
static void *of_the_chosen(const struct wrapped *w)
{
    struct chosen *c = chosen_of(w->library);
    struct copies copies = {.library = w->library, .wanted = atomic_load(&c->copy)};
    void *handle, *found;

    dl_iterate_phdr(look_for_copy, &copies);
    if (!copies.found)
        return NULL;
    handle = the_dlopen()(copies.path, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return NULL;
    found = bound_in(handle, w->version, w->name);
    the_dlclose()(handle);
    atomic_store(&c->copy, copies.found);
    return found;
}

static void *look_up(const struct wrapped *w, const void *caller, bool *for_all)
{
    void *found = record_session ? NULL : bound_in(RTLD_NEXT, w->version, w->name), *handle;

    *for_all = true;
    if (found)
        return found;
    *for_all = false;
    handle = handle_of(caller);
    found = handle ? bound_in(handle, w->version, w->name) : NULL;
    if (found == w->wrapper)
        found = NULL;
    if (!found)
        found = of_the_chosen(w);
    dlerror(); /* what was not found is not the program's error */
    return found;
}

/* The latest answers. They hold until an object is unloaded. A row is written by one thread at a time. */
#define ANSWERS 256

static struct answer {
    _Atomic uint32_t version; /* odd while it is written */
    _Atomic uint64_t changes;
    _Atomic(const void *) wrapped, caller, found;
} answers[ANSWERS];

static struct answer *row_of(const struct wrapped *w, uintptr_t object)
{
    return &answers[((uintptr_t)w / sizeof *w * 31 + (object >> 12)) % ANSWERS];
}

static void *answered(const struct wrapped *w, uintptr_t object, uint64_t changes)
{
    struct answer *row = row_of(w, object);
    uint32_t before = atomic_load(&row->version);
    const void *found = atomic_load(&row->found);
    bool right = atomic_load(&row->wrapped) == w && atomic_load(&row->caller) == (void *)object &&
                 atomic_load(&row->changes) == changes;

    return right && !(before & 1) && atomic_load(&row->version) == before ? (void *)found : NULL;
}

static void remember(const struct wrapped *w, uintptr_t object, uint64_t changes, const void *found)
{
    struct answer *row = row_of(w, object);
    uint32_t before = atomic_load(&row->version);

    if (before & 1 || !atomic_compare_exchange_strong(&row->version, &before, before + 1))
        return;
    atomic_store(&row->wrapped, w);
    atomic_store(&row->caller, (void *)object);
    atomic_store(&row->changes, changes);
    atomic_store(&row->found, found);
    atomic_store(&row->version, before + 2);
}

void *real_function(const struct wrapped *w, const void *caller)
{
    uint64_t changes = atomic_load(&unloads);
    uintptr_t object;
    bool for_all;
    void *found;

    if ((found = answered(w, 0, changes)))
        return found;
    object = object_of(caller);
    if (object && (found = answered(w, object, changes)))
        return found;
    found = look_up(w, caller, &for_all);
    if (!found) {
        fprintf(stderr, "rocekit record: %s was called, and no library in this process has it\n", w->name);
        abort();
    }
    /* A program that was not started by the recorder may unload objects unseen. */
    if ((for_all || object) && !record_session)
        remember(w, for_all ? 0 : object, changes, found);
    return found;
}

void *function_beside(const struct wrapped *which, const void *address)
{
    uint64_t changes = atomic_load(&unloads);
    void *found = answered(which, (uintptr_t)address, changes), *handle;

    if (found)
        return found;
    handle = handle_of(address);
    found = handle ? bound_in(handle, which->version, which->name) : NULL;
    if (!found && !record_session)
        found = bound_in(RTLD_NEXT, which->version, which->name);
    /* Beside another preloaded library there is none, and an extension of Python loads libibverbs for itself. */
    if (!found)
        found = of_the_chosen(which);
    if (found && !record_session)
        remember(which, (uintptr_t)address, changes, found);
    else if (!found)
        dlerror();
    return found;
}

/* ------------------------------------------------------------------ by name */

/* The wrapper of a function that a program found by name in one of the libraries, if the wrapper will call that
 * function and no other. */
static void *stand_in(void *found, const char *name)
{
    struct wrapped *w;
    Dl_info where, other;

    EACH_WRAPPED (w) {
        struct copies copies = {.library = w->library};
        struct chosen *c;
        uintptr_t copy;
        void *global;

        if (strcmp(w->name, name))
            continue;
        if (found == w->wrapper || !dladdr(found, &where) || !is_library(where.dli_fname, w->library))
            return found;
        copy = (uintptr_t)where.dli_fbase;
        c = chosen_of(w->library);
        global = bound_in(RTLD_NEXT, w->version, name);
        if (!global)
            dlerror();
        copies.wanted = atomic_load(&c->copy);
        if (global ? object_of(global) == copy : copies.wanted == copy)
            return w->wrapper;
        dl_iterate_phdr(look_for_copy, &copies);
        if (global || (copies.wanted && copies.found == copies.wanted)) {
            /* Another preloaded library that passes calls on looks for them so, and is recorded itself. */
            if (global && dladdr(global, &other) && !is_library(other.dli_fname, w->library))
                record_tell("calls past a preloaded library, unless it passes its own calls on:", other.dli_fname);
            else
                record_tell("calls of a second copy of a library, which the program found by name:", where.dli_fname);
            return found;
        }
        atomic_store(&c->copy, copy);
        return w->wrapper;
    }
    return found;
}

/* Whether a wrapper found by its version has no function to replace: the library is not there. */
static bool is_hollow(const void *found, const char *name)
{
    struct wrapped *w;
    bool for_all;

    EACH_WRAPPED (w)
        if (found == w->wrapper && !strcmp(w->name, name))
            return !look_up(w, NULL, &for_all);
    return false;
}

static inline bool may_be_wrapped(void *handle, const char *name)
{
    return handle != RTLD_NEXT && name &&
           (!strncmp(name, "ibv_", 4) || !strncmp(name, "rdma_", 5) || !strncmp(name, "mlx5dv_", 7) ||
            !strncmp(name, "efadv_", 6));
}

static void *by_name(void *handle, const char *name)
{
    void *found = the_dlsym()(handle, name);

    return found ? stand_in(found, name) : NULL;
}

/* Fail as without us. What comes next after us has no such function: this must not become a jump. */
static __attribute__((noinline)) void *not_there(const char *name, const char *version)
{
    void *volatile none = the_dlvsym()(RTLD_NEXT, name, version);

    return none;
}

static void *by_version(void *handle, const char *name, const char *version)
{
    void *found = the_dlvsym()(handle, name, version);
    struct wrapped *w;

    if (!found)
        return NULL;
    if (is_hollow(found, name))
        return not_there(name, version);
    EACH_WRAPPED (w)
        if (!strcmp(w->name, name) && !strcmp(w->version, version))
            return stand_in(found, name);
    return found;
}

/* Of these, all but dlclose end in a jump, not a call: RTLD_NEXT and RTLD_DEFAULT, and where libraries are looked for, depend on the
 * caller, which glibc finds by the return address. (GCC and clang make it a jump from -O2 on;
 * tests/record/test_record.py checks this.) */
EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    if (__builtin_expect(may_be_wrapped(handle, name), 0))
        return by_name(handle, name);
    return the_dlsym()(handle, name);
}

EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    if (__builtin_expect(may_be_wrapped(handle, name), 0))
        return by_version(handle, name, version);
    return the_dlvsym()(handle, name, version);
}

/* A library that binds to its own dependencies first passes by the wrappers, as does one in another namespace. */
EXPORT void *dlopen(const char *file, int mode)
{
    if (__builtin_expect(mode & RTLD_DEEPBIND, 0) && file)
        record_tell("verbs calls of a library that is loaded with RTLD_DEEPBIND, if it makes any:", file);
    return the_dlopen()(file, mode);
}

EXPORT void *dlmopen(Lmid_t namespace, const char *file, int mode)
{
    if (namespace != LM_ID_BASE && file)
        record_tell("verbs calls of a library that is loaded into a namespace of the linker, if it makes any:", file);
    return the_dlmopen()(namespace, file, mode);
}

EXPORT int dlclose(void *handle)
{
    int result = the_dlclose()(handle);

    atomic_fetch_add(&unloads, 1);
    return result;
}
