/* Counts what a program posts and polls, under any other library that is preloaded: the truth for a recorder.
 *
 * It takes the place of a device's functions right after ibv_open_device, below whoever does so later. One file
 * for each process, $VERBS_COUNTER.PID, holds four 64-bit counts: work requests accepted by send queues (not those of the
 * ibv_wr_* calls), by receive queues (shared ones too), completions polled, and posts refused.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SENT, RECEIVED, POLLED, REFUSED, COUNTS };

static uint64_t *counts;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void child(void) { counts = NULL; }

static void add(int which, long n)
{
    pthread_mutex_lock(&lock);
    if (!counts) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", getenv("VERBS_COUNTER"), getpid());
        int fd = open(path, O_RDWR | O_CREAT, 0644);
        if (fd < 0 || ftruncate(fd, COUNTS * sizeof *counts))
            abort();
        counts = mmap(NULL, COUNTS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        pthread_atfork(NULL, NULL, child);
    }
    counts[which] += n;
    pthread_mutex_unlock(&lock);
}

/* What a device had; devices of one driver have the same functions. */
static int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
static struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);

/* Of a QP without a receive queue rxe refuses all, and names none of them. */
#define CHAIN(name, kind, queue, which)                                                                    \
    static int my_##name(struct queue *q, struct kind *wr, struct kind **bad)                              \
    {                                                                                                      \
        long n = 0;                                                                                        \
        *bad = NULL;                                                                                       \
        int failed = name(q, wr, bad);                                                                     \
        for (struct kind *one = wr; one && !(failed && (!*bad || one == *bad)); one = one->next)           \
            n++;                                                                                           \
        add(which, n);                                                                                     \
        if (failed)                                                                                        \
            add(REFUSED, 1);                                                                               \
        return failed;                                                                                     \
    }
CHAIN(post_send, ibv_send_wr, ibv_qp, SENT)
CHAIN(post_recv, ibv_recv_wr, ibv_qp, RECEIVED)
CHAIN(post_srq_recv, ibv_recv_wr, ibv_srq, RECEIVED)

/* A window of type 1 is bound by a call of its own, which is a work request like another. */
static int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
static int my_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    int failed = bind_mw(qp, mw, bind);
    add(failed ? REFUSED : SENT, 1);
    return failed;
}

static int my_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
    int n = poll_cq(cq, most, wc);
    if (n > 0)
        add(POLLED, n);
    return n;
}

/* Loaded by an extension of Python, libibverbs is not among what all can see. */
static void *of_libibverbs(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    return found ? found : dlsym(dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
}

static struct ibv_cq_ex polled; /* rxe's own functions */
static int my_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
    int none = polled.start_poll(cq, attributes);
    if (!none)
        add(POLLED, 1);
    return none;
}
static int my_next_poll(struct ibv_cq_ex *cq)
{
    int none = polled.next_poll(cq);
    if (!none)
        add(POLLED, 1);
    return none;
}
static struct ibv_cq_ex *my_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes)
{
    struct ibv_cq_ex *cq = create_cq_ex(context, attributes);
    if (cq) {
        if (cq->start_poll != my_start_poll)
            polled = *cq;
        cq->start_poll = my_start_poll;
        cq->next_poll = my_next_poll;
    }
    return cq;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *(*real)(struct ibv_device *) = of_libibverbs("ibv_open_device");
    struct ibv_context *context = real(device);
    if (!context)
        return NULL;
    struct verbs_context *verbs = verbs_get_ctx(context);
#define PUT(place, name) if (place->name) { name = place->name; place->name = my_##name; }
    struct ibv_context_ops *ops = &context->ops;
    PUT(ops, post_send) PUT(ops, post_recv) PUT(ops, post_srq_recv) PUT(ops, poll_cq) PUT(ops, bind_mw)
    PUT(verbs, create_cq_ex)
    return context;
}
