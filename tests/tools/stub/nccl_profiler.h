/* The part of NCCL's profiler interface that the stub host uses, under its published names, for builds without
 * NCCL's own headers (plugins/profiler/example/nccl of its sources): declared from the documentation.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

typedef enum { ncclSuccess = 0 } ncclResult_t;
typedef enum { NCCL_LOG_NONE = 0, NCCL_LOG_WARN = 2 } ncclDebugLogLevel;
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
				  const char *format, ...);

enum {
	ncclProfileGroup = 1,
	ncclProfileColl = 2,
	ncclProfileP2p = 4,
	ncclProfileProxyOp = 8,
	ncclProfileProxyStep = 16,
	ncclProfileProxyCtrl = 32,
	ncclProfileKernelCh = 64,
	ncclProfileNetPlugin = 128,
	ncclProfileGroupApi = 256,
	ncclProfileCollApi = 512,
};

typedef enum {
	ncclProfilerProxyStepSendGPUWait = 8,
	ncclProfilerProxyStepSendWait = 9,
	ncclProfilerProxyStepRecvWait = 10,
	ncclProfilerProxyStepRecvFlushWait = 11,
	ncclProfilerProxyStepRecvGPUWait = 12,
	ncclProfilerProxyOpInProgress_v4 = 19,
	ncclProfilerProxyStepSendPeerWait_v4 = 20,
} ncclProfilerEventState_t;

enum { NCCL_PROFILER_NET_TYPE_IB = 1 << 16, NCCL_PROFILER_NET_IB_VER = 1, ncclProfileQp = 1 };

typedef struct {
	uint8_t type;
	union {
		struct {
			int device;
			uint64_t wr_id;
			int opcode;
			int qpNum;
			size_t length;
		} qp;
	};
} ncclProfilerNetIbDescr_v1_t;

#define EVENT(TYPE, PARENT)                                                                                    \
	struct {                                                                                               \
		TYPE type;                                                                                     \
		void *parentObj;                                                                               \
		int rank;                                                                                      \
		union {                                                                                        \
			struct {                                                                               \
				uint64_t seqNumber;                                                            \
				const char *func;                                                              \
				void const *sendBuff;                                                          \
				void *recvBuff;                                                                \
				size_t count;                                                                  \
				int root;                                                                      \
				const char *datatype;                                                          \
				uint8_t nChannels;                                                             \
				uint8_t nWarps;                                                                \
				const char *algo;                                                              \
				const char *proto;                                                             \
				PARENT                                                                         \
			} coll;                                                                                \
			struct {                                                                               \
				const char *func;                                                              \
				void *buff;                                                                    \
				const char *datatype;                                                          \
				size_t count;                                                                  \
				int peer;                                                                      \
				uint8_t nChannels;                                                             \
				PARENT                                                                         \
			} p2p;                                                                                 \
			struct {                                                                               \
				pid_t pid;                                                                     \
				uint8_t channelId;                                                             \
				int peer;                                                                      \
				int nSteps;                                                                    \
				int chunkSize;                                                                 \
				int isSend;                                                                    \
			} proxyOp;                                                                             \
			struct {                                                                               \
				int step;                                                                      \
			} proxyStep;                                                                           \
			struct {                                                                               \
				int64_t id;                                                                    \
				void *data;                                                                    \
			} netPlugin;                                                                           \
		};                                                                                             \
	}

typedef EVENT(uint8_t, ) ncclProfilerEventDescr_v4_t;
typedef EVENT(uint64_t, void *parentGroup;) ncclProfilerEventDescr_v5_t;
typedef ncclProfilerEventDescr_v5_t ncclProfilerEventDescr_v6_t;

typedef union {
	struct {
		size_t transSize;
	} proxyStep;
} ncclProfilerEventStateArgs_v4_t, ncclProfilerEventStateArgs_v5_t, ncclProfilerEventStateArgs_v6_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
			     ncclDebugLogger_t log);
	ncclResult_t (*startEvent)(void *context, void **handle, ncclProfilerEventDescr_v4_t *event);
	ncclResult_t (*stopEvent)(void *handle);
	ncclResult_t (*recordEventState)(void *handle, ncclProfilerEventState_t state,
					 ncclProfilerEventStateArgs_v4_t *arguments);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v4_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
			     ncclDebugLogger_t log);
	ncclResult_t (*startEvent)(void *context, void **handle, ncclProfilerEventDescr_v5_t *event);
	ncclResult_t (*stopEvent)(void *handle);
	ncclResult_t (*recordEventState)(void *handle, ncclProfilerEventState_t state,
					 ncclProfilerEventStateArgs_v5_t *arguments);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v5_t, ncclProfiler_v6_t;
