/*
 * A program that runs until its input ends, for the recorder to attach to. Threads post and poll all the time, while
 * others allocate memory and load libraries, so that somebody often holds their locks. It is told what to do, one word
 * a line, and answers each with a line.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_context_ops before;
static struct ibv_pd *pd;
static volatile int stopping, pausing;
static char memory[4096];

/* A thread's QP and what it did with it. */
struct worker {
    pthread_t thread;
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_cq_ex *cq_ex; /* then both are used by the extended calls */
    void (*own_start)(struct ibv_qp_ex *);
    int (*own_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    uint64_t first, posted, completed, wrong;
} workers[3];

static void post(struct worker *w)
{
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64};
    struct ibv_send_wr wr = {.wr_id = w->first + w->posted, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

    if (!w->cq_ex) {
        if (ibv_post_send(w->qp, &wr, &bad))
            w->wrong++;
    } else {
        struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(w->qp);

        ibv_wr_start(ex);
        ex->wr_id = wr.wr_id;
        ibv_wr_send(ex);
        ibv_wr_set_sge(ex, 0, sge.addr, sge.length);
        if (ibv_wr_complete(ex))
            w->wrong++;
    }
    w->posted++;
}

static void completed(struct worker *w, uint64_t wr_id, int status)
{
    if (status || wr_id != w->first + w->completed)
        w->wrong++;
    w->completed++;
}

static void poll(struct worker *w)
{
    struct ibv_poll_cq_attr attr = {0};
    struct ibv_wc wc[4];
    int n, i;

    if (!w->cq_ex) {
        while ((n = ibv_poll_cq(w->cq, 4, wc)) > 0)
            for (i = 0; i < n; i++)
                completed(w, wc[i].wr_id, wc[i].status);
    } else if (!ibv_start_poll(w->cq_ex, &attr)) {
        do
            completed(w, w->cq_ex->wr_id, w->cq_ex->status);
        while (!ibv_next_poll(w->cq_ex));
        ibv_end_poll(w->cq_ex);
    }
}

static void *work(void *of)
{
    struct worker *w = of;
    struct timespec pause = {0, 200000};

    while (!stopping) {
        if (!pausing) {
            post(w);
            post(w);
            poll(w);
        }
        nanosleep(&pause, NULL);
    }
    poll(w);
    return NULL;
}

static void *disturb(void *loads)
{
    static void *volatile kept[64];
    unsigned i = 0;

    while (!stopping) {
        if (loads) {
            void *handle = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);

            if (handle)
                dlclose(handle);
            usleep(50);
        } else {
            free(kept[i % 64]);
            kept[i % 64] = malloc(16 + i % 3000);
            /* A third of the time: more would only keep a processor from those who share it. */
            if (!(++i % 2048))
                usleep(100);
        }
    }
    return NULL;
}

static struct ibv_qp *new_qp(struct ibv_cq *cq, int extended)
{
    struct ibv_qp_init_attr_ex attr = {.send_cq = cq,
                                       .recv_cq = cq,
                                       .qp_type = IBV_QPT_RC,
                                       .sq_sig_all = 1,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .send_ops_flags = IBV_QP_EX_WITH_SEND,
                                       .pd = pd,
                                       .cap = {.max_send_wr = 64, .max_send_sge = 1}};
    struct ibv_qp_init_attr plain = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};

    return extended ? ibv_create_qp_ex(context, &attr) : ibv_create_qp(pd, &plain);
}

static void begin(struct worker *w, uint64_t first, int extended)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 100, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM};

    w->first = first;
    if (extended)
        w->cq_ex = ibv_create_cq_ex(context, &attr);
    w->cq = extended ? ibv_cq_ex_to_cq(w->cq_ex) : ibv_create_cq(context, 100, NULL, NULL, 0);
    w->qp = new_qp(w->cq, extended);
    if (extended) {
        w->own_start = ibv_qp_to_qp_ex(w->qp)->wr_start;
        w->own_poll = w->cq_ex->start_poll;
    }
    pthread_create(&w->thread, NULL, work, w);
}

/* How many functions in the objects are not those that were there at the start. */
static int replaced(void)
{
    int n = memcmp(&context->ops, &before, sizeof before) != 0;
    size_t i;

    for (i = 0; i < sizeof workers / sizeof *workers; i++)
        if (workers[i].own_start)
            n += (ibv_qp_to_qp_ex(workers[i].qp)->wr_start != workers[i].own_start) +
                 (workers[i].cq_ex->start_poll != workers[i].own_poll);
    return n;
}

/* Wait, and say how often it was interrupted. */
static int wait_for_input(int timeout_ms)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd = epoll_create1(0), interrupted = 0;

    epoll_ctl(fd, EPOLL_CTL_ADD, 0, &event);
    puts("ready");
    fflush(stdout);
    while (epoll_wait(fd, &event, 1, timeout_ms) != 1 && errno == EINTR)
        interrupted++;
    printf("%d\n", interrupted);
    return 0;
}

int main(int argc, char **argv)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    pthread_t others[2];
    char line[64];
    size_t i;

    if (argc > 2 && !strcmp(argv[1], "epoll"))
        return wait_for_input(atoi(argv[2]));
    if (argc > 1 && !strcmp(argv[1], "no_device")) {
        puts("ready");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin))
            ;
        return 0;
    }
    context = ibv_open_device(list[0]);
    before = context->ops;
    pd = ibv_alloc_pd(context);
    begin(&workers[0], 1000000, 0);
    begin(&workers[1], 2000000, 1);
    pthread_create(&others[0], NULL, disturb, NULL);
    pthread_create(&others[1], NULL, disturb, others);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "new"))
            begin(&workers[2], 3000000, 0);
        if (!strcmp(line, "pause"))
            pausing = 1;
        if (!strcmp(line, "go"))
            pausing = 0;
        printf("%d", replaced());
        for (i = 0; i < sizeof workers / sizeof *workers && workers[i].qp; i++)
            printf(" %llu", (unsigned long long)workers[i].posted);
        puts("");
        fflush(stdout);
    }
    stopping = 1;
    for (i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    for (i = 0; i < sizeof workers / sizeof *workers; i++)
        if (workers[i].qp) {
            pthread_join(workers[i].thread, NULL);
            printf("%llu %llu %llu\n", (unsigned long long)workers[i].posted,
                   (unsigned long long)workers[i].completed, (unsigned long long)workers[i].wrong);
            ibv_destroy_qp(workers[i].qp);
        }
    return ibv_close_device(context);
}
