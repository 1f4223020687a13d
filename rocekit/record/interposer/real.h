/* The replaced functions, looked up by name and version however their library was loaded. */
#ifndef ROCEKIT_REAL_H
#define ROCEKIT_REAL_H

#define VERBS "libibverbs.so"
#define RDMACM "librdmacm.so"
#define MLX5 "libmlx5.so"

/* The function of wrapped.h that a wrapper replaces. */
void *real_function(const char *name);

/* Another function of one of the libraries, or NULL. */
void *library_function(const char *library, const char *version, const char *name);

/* In the wrapper of `name`: `real` is the function itself, looked up once. */
#define REAL(name)                                                                                           \
    static _Atomic(__typeof__(&name)) looked_up;                                                                 \
    __typeof__(&name) real = atomic_load_explicit(&looked_up, memory_order_acquire);                             \
    if (__builtin_expect(!real, 0)) {                                                                        \
        real = (__typeof__(&name))real_function(#name);                                                      \
        atomic_store_explicit(&looked_up, real, memory_order_release);                                           \
    }

#define EXPORT __attribute__((visibility("default")))

#endif
