/* A table from pointers to their data: a fixed array, read without locks, written off the data path. */
#ifndef ROCEKIT_TABLE_H
#define ROCEKIT_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct table_row {
    _Atomic(const void *) key; /* NULL: never used, TABLE_GONE: was used */
    void *value;
};

struct table {
    struct table_row *rows;
    uint32_t bits;
    pthread_mutex_t lock;
};

#define TABLE_GONE ((const void *)1)

/* Unused pages of the rows take no memory. */
#define TABLE(name, size_bits)                                                                               \
    static struct table_row name##_rows[1u << (size_bits)];                                                  \
    static struct table name = {name##_rows, size_bits, PTHREAD_MUTEX_INITIALIZER}

/* Allocators align verbs objects to at least 16 bytes. */
static inline uint32_t table_start(const struct table *table, const void *key)
{
    return (uint32_t)(((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15ull >> (64 - table->bits));
}

static inline void *table_get(const struct table *table, const void *key)
{
    uint32_t mask = (1u << table->bits) - 1, i = table_start(table, key), n;

    for (n = 0; n <= mask; n++, i = (i + 1) & mask) {
        const void *found = atomic_load_explicit(&table->rows[i].key, memory_order_acquire);

        if (found == key)
            return table->rows[i].value;
        if (!found)
            return NULL;
    }
    return NULL;
}

static inline bool table_put(struct table *table, const void *key, void *value)
{
    uint32_t mask = (1u << table->bits) - 1, i = table_start(table, key), n;
    bool done = false;

    pthread_mutex_lock(&table->lock);
    for (n = 0; n <= mask && !done; n++, i = (i + 1) & mask) {
        const void *found = atomic_load_explicit(&table->rows[i].key, memory_order_relaxed);

        if (found && found != TABLE_GONE)
            continue;
        table->rows[i].value = value;
        atomic_store_explicit(&table->rows[i].key, key, memory_order_release);
        done = true;
    }
    pthread_mutex_unlock(&table->lock);
    return done;
}

/* Remove a key; gives its value, or NULL. */
static inline void *table_take(struct table *table, const void *key)
{
    uint32_t mask = (1u << table->bits) - 1, i = table_start(table, key), n;
    void *value = NULL;

    pthread_mutex_lock(&table->lock);
    for (n = 0; n <= mask; n++, i = (i + 1) & mask) {
        const void *found = atomic_load_explicit(&table->rows[i].key, memory_order_relaxed);

        if (!found)
            break;
        if (found == key) {
            value = table->rows[i].value;
            atomic_store_explicit(&table->rows[i].key, TABLE_GONE, memory_order_release);
            break;
        }
    }
    pthread_mutex_unlock(&table->lock);
    return value;
}

#endif
