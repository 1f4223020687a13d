/* The replaced functions, looked up by name and version however their library was loaded. */
#ifndef ROCEKIT_REAL_H
#define ROCEKIT_REAL_H

#include <stdbool.h>

#define VERBS "libibverbs.so"
#define RDMACM "librdmacm.so"
#define MLX5 "libmlx5.so"
#define EFA "libefa.so"

/* A function that replaces a library's. The version is that of exports.map. */
struct wrapped {
    const char *library, *version, *name;
    void *wrapper;
};

#define EXPORT __attribute__((visibility("default")))

/*
 * Stands before the definition of rocekit_NAME, which replaces NAME.
 *
 * The name is exported under its library's version alone, not as its default (one @, not two): a caller that was
 * linked with the library asks for the version and finds the wrapper. A weak reference of a program that was linked
 * without the library, and dlsym in one that has not loaded it, ask for none: they must find what they would find
 * without us.
 */
#define WRAPPER(library_, version_, name_)                                                                   \
    __typeof__(name_) rocekit_##name_;                                                                       \
    __asm__(".symver rocekit_" #name_ ", " #name_ "@" version_);                                             \
    __attribute__((used, section("rocekit_wrapped"))) static struct wrapped entry_##name_ = {                \
        library_, version_, #name_, (void *)rocekit_##name_};                                                \
    EXPORT

/* The function that a wrapper replaces, for the object that contains this address: the wrapper's caller. */
void *real_function(const struct wrapped *wrapped, const void *caller);

/* Whether a library's file has such a name, perhaps with something behind it. */
bool is_library(const char *path, const char *library);

/* Put the wrappers in the place of the functions, wherever loaded objects refer to them, and back. */
void references_replace(void);
void references_restore(void);

/* Another function of the library that this address is in, or NULL. */
void *function_beside(const struct wrapped *which, const void *address);

/* `what` is the function `name` beside an address. */
#define BESIDE(what, address, version, name)                                                                 \
    static const struct wrapped wanted_##name = {VERBS, version, #name, NULL};                               \
    what = (__typeof__(&name))function_beside(&wanted_##name, (void *)(address))

/* In the wrapper of `name`: `real` is the function itself. */
#define REAL(name)                                                                                           \
    __typeof__(&name) real = (__typeof__(&name))real_function(&entry_##name, __builtin_return_address(0))

#endif
