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
    _Atomic(void *) value;
};

struct table {
    struct table_row *rows;
    uint32_t bits;
    pthread_mutex_t lock;
};

#define TABLE_GONE ((const void *)1)

/* Unused pages of the rows take no memory. The child of a fork gets a free lock: another thread may have held it. */
#define TABLE(name, size_bits)                                                                               \
    static struct table_row name##_rows[1u << (size_bits)];                                                  \
    static struct table name = {name##_rows, size_bits, PTHREAD_MUTEX_INITIALIZER};                          \
    static void name##_after_fork(void)                                                                      \
    {                                                                                                        \
        pthread_mutex_init(&name.lock, NULL);                                                                \
    }                                                                                                        \
    __attribute__((constructor)) static void name##_start(void)                                              \
    {                                                                                                        \
        pthread_atfork(NULL, NULL, name##_after_fork);                                                       \
    }                                                                                                        \
    _Static_assert((size_bits) > 0, "")

/* Allocators align verbs objects to at least 16 bytes. */
static inline uint32_t table_start(const struct table *table, const void *key)
{
    return (uint32_t)(((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15ull >> (64 - table->bits));
}

static inline struct table_row *table_find(const struct table *table, const void *key)
{
    uint32_t mask = (1u << table->bits) - 1, i = table_start(table, key), n;

    for (n = 0; n <= mask; n++, i = (i + 1) & mask) {
        const void *found = atomic_load_explicit(&table->rows[i].key, memory_order_acquire);

        if (found == key)
            return &table->rows[i];
        if (!found)
            return NULL;
    }
    return NULL;
}

static inline void *table_get(const struct table *table, const void *key)
{
    struct table_row *row = table_find(table, key);

    return row ? atomic_load_explicit(&row->value, memory_order_acquire) : NULL;
}

/* A key that is there already gets the new value: its memory is another object's by now. */
static inline bool table_put(struct table *table, const void *key, void *value)
{
    uint32_t mask = (1u << table->bits) - 1, i = table_start(table, key), n;
    struct table_row *row;

    pthread_mutex_lock(&table->lock);
    row = table_find(table, key);
    for (n = 0; n <= mask && !row; n++, i = (i + 1) & mask) {
        const void *found = atomic_load_explicit(&table->rows[i].key, memory_order_relaxed);

        if (!found || found == TABLE_GONE)
            row = &table->rows[i];
    }
    if (row) {
        atomic_store_explicit(&row->value, value, memory_order_release);
        atomic_store_explicit(&row->key, key, memory_order_release);
    }
    pthread_mutex_unlock(&table->lock);
    return row != NULL;
}

/* Remove a key, if this is still its value. */
static inline void table_drop(struct table *table, const void *key, const void *value)
{
    uint32_t mask = (1u << table->bits) - 1, i;
    struct table_row *row;

    pthread_mutex_lock(&table->lock);
    row = table_find(table, key);
    if (row && atomic_load_explicit(&row->value, memory_order_relaxed) == value) {
        atomic_store_explicit(&row->key, TABLE_GONE, memory_order_release);
        /* Before a row that was never used, no reader needs to look further: else a table in which keys come and go
         * would have no end of a search. */
        i = (uint32_t)(row - table->rows);
        if (!atomic_load_explicit(&table->rows[(i + 1) & mask].key, memory_order_relaxed))
            for (; atomic_load_explicit(&table->rows[i].key, memory_order_relaxed) == TABLE_GONE; i = (i - 1) & mask)
                atomic_store_explicit(&table->rows[i].key, NULL, memory_order_release);
    }
    pthread_mutex_unlock(&table->lock);
}

#endif
