/*
 * References of loaded objects to the functions that the wrappers replace. A preloaded library gets them from the
 * linker; one that is loaded later must put itself into each object's table (.got). What the program has found by
 * dlsym, and objects that are loaded later, go on calling the functions themselves.
 */
#define _GNU_SOURCE
#include "verbs.h"

#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern struct wrapped __start_rocekit_wrapped[] __attribute__((visibility("hidden")));
extern struct wrapped __stop_rocekit_wrapped[] __attribute__((visibility("hidden")));

#if defined(__x86_64__)
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#define GLOBAL R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#define GLOBAL R_AARCH64_GLOB_DAT
#endif

#define MOST_REFERENCES 4096
#define MOST_COPIES 16

static struct reference {
    void **slot;
    void *before;
} references[MOST_REFERENCES];
static uint32_t reference_count;

/* The libraries whose functions are replaced. */
static struct copy {
    const char *library;
    uintptr_t from, to;
} copies[MOST_COPIES];
static uint32_t copy_count;

static void extent(const struct dl_phdr_info *object, uintptr_t *from, uintptr_t *to)
{
    int i;

    *from = UINTPTR_MAX;
    *to = 0;
    for (i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;

        if (part->p_type != PT_LOAD)
            continue;
        if (start < *from)
            *from = start;
        if (start + part->p_memsz > *to)
            *to = start + part->p_memsz;
    }
}

static int note_copy(struct dl_phdr_info *object, size_t size, void *data)
{
    static const char *const libraries[] = {VERBS, RDMACM, MLX5, EFA};
    size_t i;

    (void)size, (void)data;
    for (i = 0; i < sizeof libraries / sizeof *libraries && copy_count < MOST_COPIES; i++)
        if (object->dlpi_name && is_library(object->dlpi_name, libraries[i])) {
            copies[copy_count].library = libraries[i];
            extent(object, &copies[copy_count].from, &copies[copy_count].to);
            copy_count++;
        }
    return 0;
}

static bool is_of(const char *library, uintptr_t function)
{
    uint32_t i;

    for (i = 0; i < copy_count; i++)
        if (!strcmp(copies[i].library, library) && function >= copies[i].from && function < copies[i].to)
            return true;
    return false;
}

/* Whether a page is read-only now, as the linker leaves the tables of an object when it has bound them. Before that
 * they are not to be touched: another thread is loading the object. */
static bool is_read_only(uintptr_t page)
{
    char buffer[4096], line[48]; /* of a line, the addresses and the rights */
    bool found = false, read_only = false;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t got, i;
    size_t used = 0;

    while (fd >= 0 && !found && (got = read(fd, buffer, sizeof buffer)) > 0)
        for (i = 0; i < got && !found; i++) {
            unsigned long from, to;
            char *end;

            if (buffer[i] != '\n') {
                if (used < sizeof line - 1)
                    line[used++] = buffer[i];
                continue;
            }
            line[used] = 0;
            used = 0;
            from = strtoul(line, &end, 16);
            to = *end == '-' ? strtoul(end + 1, &end, 16) : 0;
            found = page >= from && page < to;
            read_only = found && !strncmp(end, " r--", 4);
        }
    if (fd >= 0)
        close(fd);
    return read_only;
}

struct tables {
    const ElfW(Sym) *symbols;
    const char *strings;
    uintptr_t read_only_from, read_only_to;
    int state; /* of the read-only part: 0 not looked yet, 1 read-only, 2 not */
    bool restore;
};

static void put(struct tables *tables, void **slot, void *value)
{
    uintptr_t page = (uintptr_t)slot & ~(uintptr_t)(RECORD_PAGE - 1);
    bool protected = (uintptr_t)slot >= tables->read_only_from && (uintptr_t)slot < tables->read_only_to;

    if (protected && !tables->state)
        tables->state = is_read_only(page) ? 1 : 2;
    if (protected && (tables->state == 2 || mprotect((void *)page, RECORD_PAGE, PROT_READ | PROT_WRITE)))
        return;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (protected)
        mprotect((void *)page, RECORD_PAGE, PROT_READ);
}

static void replace(struct tables *tables, const char *name, void **slot, bool lazy, uintptr_t from, uintptr_t to)
{
    uintptr_t now = (uintptr_t)__atomic_load_n(slot, __ATOMIC_ACQUIRE);
    struct wrapped *w;

    for (w = __start_rocekit_wrapped; w < __stop_rocekit_wrapped; w++) {
        if (strcmp(w->name, name))
            continue;
        /* Bound already, or to be bound in its first call. */
        if (!is_of(w->library, now) && !(lazy && now >= from && now < to))
            return;
        if (reference_count == MOST_REFERENCES)
            return;
        references[reference_count++] = (struct reference){slot, (void *)now};
        put(tables, slot, w->wrapper);
        return;
    }
}

static void restore(struct tables *tables, void **slot)
{
    void *now = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    struct wrapped *w;
    uint32_t i;

    for (w = __start_rocekit_wrapped; w < __stop_rocekit_wrapped; w++)
        if (now == w->wrapper)
            break;
    if (w == __stop_rocekit_wrapped)
        return;
    for (i = 0; i < reference_count; i++)
        if (references[i].slot == slot) {
            put(tables, slot, references[i].before);
            return;
        }
}

static void each(struct tables *tables, uintptr_t base, const ElfW(Rela) *relocation, size_t size, uintptr_t from,
                 uintptr_t to)
{
    const ElfW(Rela) *end = (const ElfW(Rela) *)((const char *)relocation + size);

    for (; relocation && relocation < end; relocation++) {
        unsigned type = (unsigned)ELF64_R_TYPE(relocation->r_info);
        void **slot = (void **)(base + relocation->r_offset);

        if (type != JUMP_SLOT && type != GLOBAL)
            continue;
        if (tables->restore)
            restore(tables, slot);
        else
            replace(tables, tables->strings + tables->symbols[ELF64_R_SYM(relocation->r_info)].st_name, slot,
                    type == JUMP_SLOT, from, to);
    }
}

/* The linker keeps others from loading and unloading objects meanwhile. Nothing of it may be called in here. */
static int in_object(struct dl_phdr_info *object, size_t size, void *data)
{
    struct tables tables = {.restore = data != NULL};
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Rela) *jumps = NULL, *others = NULL;
    size_t jumps_size = 0, others_size = 0;
    uintptr_t from, to;
    int i;

    (void)size;
    extent(object, &from, &to);
    if ((uintptr_t)in_object >= from && (uintptr_t)in_object < to)
        return 0; /* ourselves */
    for (i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];

        if (part->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(object->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_GNU_RELRO) {
            tables.read_only_from = object->dlpi_addr + part->p_vaddr;
            tables.read_only_to = (tables.read_only_from + part->p_memsz) & ~(uintptr_t)(RECORD_PAGE - 1);
        }
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t at = dynamic->d_un.d_ptr;

        if (at < object->dlpi_addr)
            at += object->dlpi_addr; /* not relocated: the vDSO */
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            tables.symbols = (const ElfW(Sym) *)at;
            break;
        case DT_STRTAB:
            tables.strings = (const char *)at;
            break;
        case DT_JMPREL:
            jumps = (const ElfW(Rela) *)at;
            break;
        case DT_RELA:
            others = (const ElfW(Rela) *)at;
            break;
        case DT_PLTRELSZ:
            jumps_size = dynamic->d_un.d_val;
            break;
        case DT_RELASZ:
            others_size = dynamic->d_un.d_val;
            break;
        default:
            break;
        }
    }
    if (!tables.symbols || !tables.strings)
        return 0;
    each(&tables, object->dlpi_addr, jumps, jumps_size, from, to);
    each(&tables, object->dlpi_addr, others, others_size, from, to);
    return 0;
}

void references_replace(void)
{
    copy_count = reference_count = 0;
    dl_iterate_phdr(note_copy, NULL);
    dl_iterate_phdr(in_object, NULL);
}

void references_restore(void)
{
    dl_iterate_phdr(in_object, (void *)1);
}
