/* Declarations about verbs objects that the interposer's files share. */
#ifndef ROCEKIT_VERBS_H
#define ROCEKIT_VERBS_H

#include "real.h"
#include "record.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* rdma-core's mlx5 extensions; passing pointers on needs no headers of theirs. */
struct mlx5dv_context_attr;
struct mlx5dv_qp_init_attr;
struct mlx5dv_cq_init_attr;
struct mlx5dv_obj;
struct ibv_context *mlx5dv_open_device(struct ibv_device *, struct mlx5dv_context_attr *);
struct ibv_qp *mlx5dv_create_qp(struct ibv_context *, struct ibv_qp_init_attr_ex *, struct mlx5dv_qp_init_attr *);
struct ibv_cq_ex *mlx5dv_create_cq(struct ibv_context *, struct ibv_cq_init_attr_ex *,
                                   struct mlx5dv_cq_init_attr *);
int mlx5dv_init_obj(struct mlx5dv_obj *, uint64_t);
struct mlx5dv_devx_obj;
struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *, const void *, size_t, void *, size_t);

/* And of its efa extensions. */
struct efadv_qp_init_attr;
struct efadv_cq_init_attr;
struct efadv_wq_attr;
int efadv_query_qp_wqs(struct ibv_qp *, struct efadv_wq_attr *, struct efadv_wq_attr *, uint32_t);
struct ibv_qp *efadv_create_driver_qp(struct ibv_pd *, struct ibv_qp_init_attr *, uint32_t);
struct ibv_qp *efadv_create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *, struct efadv_qp_init_attr *,
                                  uint32_t);
struct ibv_cq_ex *efadv_create_cq(struct ibv_context *, struct ibv_cq_init_attr_ex *, struct efadv_cq_init_attr *,
                                  uint32_t);

/* An open device: the functions that were replaced. */
struct device {
    uint8_t number;
    const void *opened_by; /* the function, whose library this device's other functions are looked up in */
    struct ibv_context_ops ops;
    __typeof__(((struct verbs_context *)0)->create_qp_ex) create_qp_ex;
    __typeof__(((struct verbs_context *)0)->create_cq_ex) create_cq_ex;
    __typeof__(((struct verbs_context *)0)->create_srq_ex) create_srq_ex;
    __typeof__(((struct verbs_context *)0)->alloc_dm) alloc_dm;
    __typeof__(((struct verbs_context *)0)->reg_dm_mr) reg_dm_mr;
};

struct device *device_of(struct ibv_context *context);
uint8_t number_of(struct ibv_context *context);
bool device_attach(struct ibv_context *context, const struct ibv_context_ops *own, const void *library);
void devices_detach(void);

/* A GID of a device; `beside` is a function of its library. */
void gid_at(const void *beside, struct ibv_context *context, uint8_t port, uint8_t index, uint8_t *gid);

/* data.c: replace a context's data path */
int data_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
int data_post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int data_post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int data_poll_cq(struct ibv_cq *, int, struct ibv_wc *);
int data_bind_mw(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);

/* extended.c: replace a QP's and a CQ's own functions */
bool extended_hook_qp(struct ibv_qp *qp, uint64_t operations, uint32_t max_send_wr, uint32_t max_send_sge);
void *extended_of_qp(struct ibv_qp *qp);
void extended_qp_gone(struct ibv_qp *qp, void *extended);
bool extended_hook_cq(struct ibv_cq_ex *cq, uint64_t wc_flags);
void *extended_of_cq(struct ibv_cq *cq);
void extended_cq_gone(struct ibv_cq *cq, void *extended);
/* Of what was made before: wr_start and start_poll are its own, where a way in stands now. */
void extended_attach_qp(struct ibv_qp_ex *ex, void (*wr_start)(struct ibv_qp_ex *), uint32_t room);
void extended_attach_cq(struct ibv_cq_ex *cq, int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *));
void extended_detach(void);
void extended_wrappers(uint64_t *start_poll_and_wr_start);

/* objects.c: replace a context's set-up calls that the headers inline */
struct ibv_qp *objects_create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
struct ibv_cq_ex *objects_create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);
struct ibv_srq *objects_create_srq_ex(struct ibv_context *, struct ibv_srq_init_attr_ex *);
struct ibv_dm *objects_alloc_dm(struct ibv_context *, struct ibv_alloc_dm_attr *);
struct ibv_mr *objects_reg_dm_mr(struct ibv_pd *, struct ibv_dm *, uint64_t, size_t, unsigned int);
struct ibv_mw *objects_alloc_mw(struct ibv_pd *, enum ibv_mw_type);
int objects_dealloc_mw(struct ibv_mw *);

/*
 * The PSNs of a QP's sends so far: with its starting PSN, they give the next. So even a journal with a gap has the
 * PSNs of later sends.
 *
 * The provider takes work requests in an order of its own where threads post at the same time, and refuses some of
 * them. So a call's PSNs are certain only if no other call on the QP was under way during it; then all before it have
 * counted theirs and given back those of what was refused. Nothing here waits.
 */
struct qp_state {
    _Atomic uint64_t psns;
    _Atomic uint64_t gate;     /* calls under way; << 32: calls that began */
    _Atomic uint32_t path_mtu; /* bytes, 0 while it is unknown */
    bool datagrams;
    bool uncounted; /* not all that was posted was seen */
    bool found;     /* made before the recorder was attached: nor was what was posted then */
    uint32_t session;
    uint32_t forks; /* of this process's ancestors until it was made: its parent's QPs have another count */
};

struct qp_state *qp_state_of(const struct ibv_qp *qp);
struct qp_state *find_qp(struct ibv_qp *qp);

/* In a call on the QP: one that was made before the recorder was attached is described in its first. */
static inline struct qp_state *qp_state_in(struct ibv_qp *qp)
{
    struct qp_state *state = qp_state_of(qp);

    if (__builtin_expect(record_session && (!state || state->session != record_session), 0))
        state = find_qp(qp);
    return state;
}
extern uint32_t fork_count;

/* One call that posts sends. */
struct turn {
    struct qp_state *state; /* NULL: nothing is known of the QP */
    uint64_t entered, before;
    uint32_t path_mtu;
    bool counts, alone;
};

static inline struct turn turn_of(struct qp_state *state)
{
    struct turn turn = {.state = state, .before = NO_PSN};

    if (!state)
        return turn;
    turn.path_mtu = atomic_load_explicit(&state->path_mtu, memory_order_relaxed);
    turn.counts = (turn.path_mtu || state->datagrams) && state->forks == fork_count && !state->uncounted &&
                  !state->found;
    turn.entered = atomic_fetch_add_explicit(&state->gate, (1ull << 32) + 1, memory_order_acq_rel);
    turn.alone = !(uint32_t)turn.entered;
    return turn;
}

/* Take PSNs; gives what the record has meanwhile. */
static inline uint64_t turn_take(struct turn *turn, uint64_t psns)
{
    if (turn->counts)
        turn->before = atomic_fetch_add_explicit(&turn->state->psns, psns, memory_order_relaxed);
    if (turn->state && !turn->alone)
        turn->before = OVERLAPPED;
    return turn->before;
}

/* Give PSNs of refused work requests back, and end; whether those that were taken are certain. */
static inline bool turn_end(struct turn *turn, uint64_t refused)
{
    struct qp_state *state = turn->state;
    uint64_t now;

    if (!state)
        return true;
    if (turn->counts && refused)
        atomic_fetch_sub_explicit(&state->psns, refused, memory_order_relaxed);
    turn->state = NULL;
    now = atomic_fetch_sub_explicit(&state->gate, 1, memory_order_acq_rel);
    return turn->alone && (uint32_t)(now >> 32) == (uint32_t)((turn->entered >> 32) + 1);
}

/* Runs as its scope ends; see record_leave. What a cancelled call took is not known: nothing is certain any more. */
static inline void turn_leave(struct turn *turn)
{
    if (__builtin_expect(!turn->state, 1))
        return;
    turn->state->uncounted = true;
    turn_end(turn, 0);
}

#define TURN __attribute__((cleanup(turn_leave))) struct turn

/* PSNs that a work request takes: one for each packet of the message or, for a READ, of its response. */
static inline uint32_t psns_of(const struct qp_state *state, uint32_t opcode, uint32_t length, uint32_t path_mtu)
{
    switch (opcode) {
    case IBV_WR_LOCAL_INV:
    case IBV_WR_BIND_MW:
        return 0;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
        return state->datagrams || length <= path_mtu ? 1 : (length + path_mtu - 1) / path_mtu;
    default:
        return 1;
    }
}

static inline struct record_item sge_item(uint64_t addr, uint32_t length, uint32_t lkey)
{
    return (struct record_item){.addr = addr, .length = length, .lkey = lkey};
}

/* Record the binding of a memory window; gives its one item. */
static inline struct record_item describe_binding(struct record_send *send, const struct ibv_mw *mw, uint32_t rkey,
                                                  const struct ibv_mw_bind_info *info)
{
    send->remote_va = info->addr;
    send->rkey = rkey;
    send->imm = info->mw_access_flags;
    send->length = mw ? mw->rkey : 0;
    return (struct record_item){.size = info->length,
                                .mr_lkey = info->mr ? info->mr->lkey : 0,
                                .mr_rkey = info->mr ? info->mr->rkey : 0};
}

uint32_t srq_number(const struct ibv_srq *srq);

static inline void not_covered(uint8_t device, const char *what)
{
    struct record_text text = {{0}};
    size_t i;

    for (i = 0; what[i] && i < sizeof text.text - 1; i++)
        text.text[i] = what[i];
    record_put(RECORD_NOT_COVERED, device, 0, &text, sizeof text);
}

#endif
