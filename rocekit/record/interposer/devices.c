/*
 * Devices: an open one has the functions that were replaced in it, and a number, by which records name it. Of a closed
 * one the number is used again, as late as possible.
 */
#include "attach.h"
#include "table.h"
#include "verbs.h"

#include <errno.h>
#include <string.h>

TABLE(devices, 10);

static struct device opened[UINT8_MAX];
static _Atomic bool used[UINT8_MAX];
static _Atomic uint32_t next_number;
static _Atomic uint32_t generation; /* of the table of devices: threads' copies of entries may be old */
static __thread struct {
    struct ibv_context *context;
    struct device *device;
    uint32_t generation;
} last __attribute__((tls_model("initial-exec")));

struct device *device_of(struct ibv_context *context)
{
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);

    if (__builtin_expect(context != last.context || now != last.generation, 0)) {
        last.device = table_get(&devices, context);
        last.context = context;
        last.generation = now;
    }
    return last.device;
}

uint8_t number_of(struct ibv_context *context)
{
    struct device *device = device_of(context);

    return device ? device->number : UINT8_MAX;
}

/* Replace a function in the extended context, if this libibverbs and this device have it. */
#define HOOK(field, ours)                                                                                    \
    do {                                                                                                     \
        struct verbs_context *extended = verbs_get_ctx_op(context, field);                                   \
        if (extended) {                                                                                      \
            device->field = extended->field;                                                                 \
            SWAP(extended->field, ours);                                                                          \
        }                                                                                                    \
    } while (0)

static struct device *free_device(void)
{
    uint32_t tries, i;

    for (tries = 0; tries < UINT8_MAX; tries++) {
        i = atomic_fetch_add(&next_number, 1) % UINT8_MAX;
        if (!atomic_exchange(&used[i], true))
            return &opened[i];
    }
    return NULL;
}

static struct device *new_device(struct ibv_context *context, const void *opened_by)
{
    struct device *device = free_device();

    if (!device)
        return NULL;
    *device = (struct device){
        .number = (uint8_t)(device - opened), .opened_by = opened_by, .ops = context->ops};
    if (!table_put(&devices, context, device)) {
        atomic_store(&used[device->number], false);
        return NULL;
    }
    return device;
}

static void say_device(enum record_type type, const struct ibv_context *context, uint8_t number)
{
    struct record_device record = {{0}};

    memcpy(record.name, context->device->name, strnlen(context->device->name, sizeof record.name - 1));
    record_put(type, number, number, &record, sizeof record);
}

/* In one store each: other threads may be calling the function. */
#define SWAP(place, function) __atomic_store_n(&(place), function, __ATOMIC_RELEASE)

static void hook(struct ibv_context *context, struct device *device)
{
    atomic_fetch_add(&generation, 1);
    /* Empty in old libraries if the device has no windows. */
    if (context->ops.alloc_mw)
        SWAP(context->ops.alloc_mw, objects_alloc_mw);
    if (context->ops.bind_mw)
        SWAP(context->ops.bind_mw, data_bind_mw);
    if (context->ops.dealloc_mw)
        SWAP(context->ops.dealloc_mw, objects_dealloc_mw);
    HOOK(create_qp_ex, objects_create_qp_ex);
    HOOK(create_cq_ex, objects_create_cq_ex);
    HOOK(create_srq_ex, objects_create_srq_ex);
    HOOK(alloc_dm, objects_alloc_dm);
    HOOK(reg_dm_mr, objects_reg_dm_mr);
    SWAP(context->ops.post_send, data_post_send);
    SWAP(context->ops.post_recv, data_post_recv);
    SWAP(context->ops.post_srq_recv, data_post_srq_recv);
    SWAP(context->ops.poll_cq, data_poll_cq);
}

static void device_hook(struct ibv_context *context, const void *opened_by)
{
    int saved = errno;
    struct device *device;

    if (!context || context->ops.post_send == data_post_send || !record_is_on())
        return;
    if (!(device = new_device(context, opened_by))) {
        not_covered(UINT8_MAX, "a device that was opened while 255 others were open");
        errno = saved;
        return;
    }
    say_device(RECORD_DEVICE, context, device->number);
    hook(context, device);
    errno = saved;
}

/* A device that was open before. The functions that let us in stand in its context; these are the device's own. */
bool device_attach(struct ibv_context *context, const struct ibv_context_ops *own, const void *library)
{
    struct device *device = table_get(&devices, context);

    if (device)
        *device = (struct device){.number = device->number, .opened_by = library, .ops = context->ops};
    else if (!(device = new_device(context, library)))
        return false;
    device->ops.post_send = own->post_send;
    device->ops.post_recv = own->post_recv;
    device->ops.post_srq_recv = own->post_srq_recv;
    device->ops.poll_cq = own->poll_cq;
    say_device(RECORD_DEVICE_FOUND, context, device->number);
    hook(context, device);
    return true;
}

/* Of a place that is ours, or a way in, back to the device's own. */
#define BACK(place, ours, own)                                                                               \
    do {                                                                                                     \
        if ((void *)(place) == (void *)(ours) || attach_is_way_in((void *)(place)))                          \
            SWAP(place, own);                                                                                \
    } while (0)
#define UNHOOK(field, ours)                                                                                  \
    do {                                                                                                     \
        struct verbs_context *extended = verbs_get_ctx_op(context, field);                                   \
        if (extended && device->field)                                                                       \
            BACK(extended->field, ours, device->field);                                                      \
    } while (0)

/* What is known of a device stays: threads may be in our functions. */
void devices_detach(void)
{
    struct table_row *row;

    for (row = devices.rows; row < devices.rows + (1u << devices.bits); row++) {
        struct ibv_context *context = (struct ibv_context *)atomic_load(&row->key);
        struct device *device = atomic_load(&row->value);

        if ((void *)context == NULL || (void *)context == TABLE_GONE || !attach_is_there(context, sizeof *context))
            continue;
        BACK(context->ops.post_send, data_post_send, device->ops.post_send);
        BACK(context->ops.post_recv, data_post_recv, device->ops.post_recv);
        BACK(context->ops.post_srq_recv, data_post_srq_recv, device->ops.post_srq_recv);
        BACK(context->ops.poll_cq, data_poll_cq, device->ops.poll_cq);
        BACK(context->ops.alloc_mw, objects_alloc_mw, device->ops.alloc_mw);
        BACK(context->ops.bind_mw, data_bind_mw, device->ops.bind_mw);
        BACK(context->ops.dealloc_mw, objects_dealloc_mw, device->ops.dealloc_mw);
        UNHOOK(create_qp_ex, objects_create_qp_ex);
        UNHOOK(create_cq_ex, objects_create_cq_ex);
        UNHOOK(create_srq_ex, objects_create_srq_ex);
        UNHOOK(alloc_dm, objects_alloc_dm);
        UNHOOK(reg_dm_mr, objects_reg_dm_mr);
    }
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_open_device)
struct ibv_context *rocekit_ibv_open_device(struct ibv_device *device)
{
    REAL(ibv_open_device);
    struct ibv_context *context = real(device);

    device_hook(context, (void *)real);
    return context;
}

WRAPPER(VERBS, "IBVERBS_1.10", ibv_import_device)
struct ibv_context *rocekit_ibv_import_device(int fd)
{
    REAL(ibv_import_device);
    struct ibv_context *context = real(fd);

    device_hook(context, (void *)real);
    return context;
}

WRAPPER(MLX5, "MLX5_1.7", mlx5dv_open_device)
struct ibv_context *rocekit_mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr)
{
    REAL(mlx5dv_open_device);
    struct ibv_context *context = real(device, attr);

    device_hook(context, (void *)real);
    return context;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_close_device)
int rocekit_ibv_close_device(struct ibv_context *context)
{
    REAL(ibv_close_device);

    struct device *device = device_of(context);
    int result = real(context), saved = errno;

    /* The next context may have the same memory by now: then the entry is that one's. */
    if (!result && device) {
        table_drop(&devices, context, device);
        atomic_fetch_add(&generation, 1);
        atomic_store(&used[device->number], false);
    }
    errno = saved;
    return result;
}
