/* NCCL's profiler interface, versions 4 to 6, as far as this plug-in reads it: own declarations of the
 * documented layout (plugins/profiler/README.md of NCCL). The fields that are read stand at the same places
 * in the three versions; version 4 has a type of one byte where 5 and 6 have one of eight.
 */
#ifndef ROCEKIT_NCCL_INTERFACE_H
#define ROCEKIT_NCCL_INTERFACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum nccl_result { NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2 };

/* Kinds of events; a plug-in names those it wants as bits. */
enum nccl_kind {
	NCCL_COLLECTIVE = 1 << 1,
	NCCL_POINT_TO_POINT = 1 << 2,
	NCCL_PROXY_OP = 1 << 3,
	NCCL_PROXY_STEP = 1 << 4,
	NCCL_NETWORK = 1 << 7,
};

/* States of a step, of version 4 and later. */
enum nccl_state {
	NCCL_SEND_GPU_WAIT = 8,
	NCCL_SEND_WAIT = 9,
	NCCL_RECV_WAIT = 10,
	NCCL_RECV_FLUSH_WAIT = 11,
	NCCL_RECV_GPU_WAIT = 12,
	NCCL_SEND_PEER_WAIT = 20,
};

typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
enum { NCCL_LOG_WARNING = 2, NCCL_SUBSYSTEM_PROFILE = 16384 };

struct nccl_event {
	union {
		uint8_t of_version_4;
		uint64_t of_version_5;
	} type;
	void *parent;
	int rank;
	union {
		struct {
			uint64_t sequence;
			const char *function;
			const void *send_buffer;
			void *receive_buffer;
			size_t count;
			int root;
			const char *datatype;
			uint8_t channels;
			uint8_t warps;
			const char *algorithm;
			const char *protocol;
		} collective;
		struct {
			const char *function;
			void *buffer;
			const char *datatype;
			size_t count;
			int peer;
			uint8_t channels;
		} point_to_point;
		struct {
			pid_t pid;
			uint8_t channel;
			int peer;
			int steps;
			int chunk_bytes;
			int is_send;
		} proxy_op;
		struct {
			int number;
		} step;
		struct {
			int64_t plugin;
			void *data;
		} network;
	};
};

union nccl_state_arguments {
	struct {
		size_t bytes;
	} step;
};

/* What NCCL's network plug-in for InfiniBand and RoCE tells of a work request. */
enum { NCCL_NET_IB = 1, NCCL_NET_IB_VERSION = 1, NCCL_NET_QP = 1 };

struct nccl_net_qp {
	uint8_t type;
	struct {
		int device;
		uint64_t wr_id;
		int opcode;
		int qpn;
		size_t length;
	} qp;
};

struct nccl_profiler_4 {
	const char *name;
	int (*init)(void **context, int *wanted, const char *name, uint64_t hash, int nodes, int ranks, int rank,
		    nccl_logger log);
	int (*start)(void *context, void **handle, struct nccl_event *event);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, union nccl_state_arguments *arguments);
	int (*finalize)(void *context);
};

/* Versions 5 and 6: the communicator's hash comes second. */
struct nccl_profiler_5 {
	const char *name;
	int (*init)(void **context, uint64_t hash, int *wanted, const char *name, int nodes, int ranks, int rank,
		    nccl_logger log);
	int (*start)(void *context, void **handle, struct nccl_event *event);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, union nccl_state_arguments *arguments);
	int (*finalize)(void *context);
};

#if UINTPTR_MAX == UINT64_MAX
#define AT(field, place) _Static_assert(offsetof(struct nccl_event, field) == (place), #field)
AT(parent, 8);
AT(rank, 16);
AT(collective.sequence, 24);
AT(collective.count, 56);
AT(collective.root, 64);
AT(collective.datatype, 72);
AT(collective.channels, 80);
AT(collective.algorithm, 88);
AT(point_to_point.peer, 56);
AT(proxy_op.pid, 24);
AT(proxy_op.channel, 28);
AT(proxy_op.peer, 32);
AT(proxy_op.is_send, 44);
AT(network.data, 32);
_Static_assert(offsetof(struct nccl_net_qp, qp.wr_id) == 16, "wr_id");
_Static_assert(offsetof(struct nccl_net_qp, qp.length) == 32, "length");
#undef AT
#else
#error "NCCL has 64-bit pointers"
#endif

#endif
