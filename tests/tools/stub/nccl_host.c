/* Plays NCCL to a profiler plug-in: loads it, and calls it in the order in which NCCL does (src/plugin/profiler.cc,
 * src/transport/net.cc, src/transport/net_ib of NCCL). VERSION is 4, 5 or 6.
 *
 * A group of two collectives is enqueued and stopped, before the proxy thread begins with their operations. Each
 * has a send and a receive of two steps, on channel 1. A step of the first collective ends, one of the second
 * does not: it hangs. A third operation is a point-to-point one, the fourth is another process's (PXN).
 */
#ifdef PUBLISHED
#include <sys/types.h>

#include "err.h"

#include "profiler.h"

#include "net_ib_v1.h"
#else
#include "nccl_profiler.h"
#endif

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define OF(name) JOIN(ncclProfiler, name##_v, VERSION) /* such as ncclProfilerEventDescr_v4 */
#define STRING_(a) #a
#define STRING(a) STRING_(a)

typedef JOIN(OF(EventDescr), _, t) event_t;
typedef JOIN(OF(EventStateArgs), _, t) arguments_t;
typedef JOIN(OF(), _, t) profiler_t;

static profiler_t *profiler;
static void *context;

static void log_line(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	va_list arguments;

	(void)level, (void)flags, (void)file, (void)line;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

static void *start(event_t *event)
{
	void *handle = (void *)1;

	if (profiler->startEvent(context, &handle, event) != ncclSuccess)
		abort();
	return handle;
}

static void stop(void *handle)
{
	if (handle)
		profiler->stopEvent(handle);
}

static void *group(void)
{
	event_t event;

	memset(&event, 0, sizeof event);
	event.type = VERSION == 4 ? ncclProfileGroup : ncclProfileGroupApi;
	return start(&event);
}

static void *collective(void *parent, const char *function, uint64_t sequence)
{
	event_t event;

	memset(&event, 0, sizeof event);
	event.type = ncclProfileColl;
	event.parentObj = parent;
	event.rank = 3;
	event.coll.seqNumber = sequence;
	event.coll.func = function;
	event.coll.count = 262144;
	event.coll.root = 0;
	event.coll.datatype = "ncclFloat32";
	event.coll.nChannels = 2;
	event.coll.nWarps = 16;
	event.coll.algo = "RING";
	event.coll.proto = "SIMPLE";
	return start(&event);
}

static void *proxy(void *parent, pid_t pid, int is_send)
{
	event_t event;

	memset(&event, 0, sizeof event);
	event.type = ncclProfileProxyOp;
	event.parentObj = parent;
	event.rank = 3;
	event.proxyOp.pid = pid;
	event.proxyOp.channelId = 1;
	event.proxyOp.peer = is_send ? 4 : 2;
	event.proxyOp.nSteps = 2;
	event.proxyOp.chunkSize = 524288;
	event.proxyOp.isSend = is_send;
	return start(&event);
}

static void state(void *handle, int which, size_t bytes)
{
	arguments_t arguments;

	memset(&arguments, 0, sizeof arguments);
	arguments.proxyStep.transSize = bytes;
	if (handle)
		profiler->recordEventState(handle, (ncclProfilerEventState_t)which, &arguments);
}

static void *network(void *step, int qpn, uint64_t wr_id, size_t length)
{
	ncclProfilerNetIbDescr_v1_t told;
	event_t event;

	memset(&told, 0xee, sizeof told); /* NCCL leaves opcode and length of receives as they were */
	told.type = ncclProfileQp;
	told.qp.device = 0;
	told.qp.wr_id = wr_id;
	told.qp.qpNum = qpn;
	if (length) {
		told.qp.opcode = 1; /* IBV_WR_RDMA_WRITE_WITH_IMM */
		told.qp.length = length;
	}
	memset(&event, 0, sizeof event);
	event.type = ncclProfileNetPlugin;
	event.parentObj = step;
	event.rank = 3;
	event.netPlugin.id = NCCL_PROFILER_NET_TYPE_IB | NCCL_PROFILER_NET_IB_VER;
	event.netPlugin.data = &told;
	return start(&event);
}

static void *step_of(void *operation, int number)
{
	event_t event;

	memset(&event, 0, sizeof event);
	event.type = ncclProfileProxyStep;
	event.parentObj = operation;
	event.rank = 3;
	event.proxyStep.step = number;
	return start(&event);
}

/* One step: what NCCL's proxy thread and its network plug-in tell; hangs: it is given to the network only. */
static void step(void *operation, int number, int is_send, int qpn, size_t bytes, int hangs)
{
	void *handle = step_of(operation, number), *told;

	if (is_send) {
		state(handle, ncclProfilerProxyStepSendGPUWait, 0);
		state(handle, ncclProfilerProxyStepSendPeerWait_v4, 0);
		told = network(handle, qpn, 100 + number, bytes);
		state(handle, ncclProfilerProxyStepSendWait, bytes);
	} else {
		told = network(handle, qpn, number, 0);
		state(handle, ncclProfilerProxyStepRecvWait, 0);
	}
	if (hangs)
		return;
	stop(told);
	if (!is_send) {
		state(handle, ncclProfilerProxyStepRecvFlushWait, bytes);
		state(handle, ncclProfilerProxyStepRecvGPUWait, bytes);
	}
	stop(handle);
}

int main(int count, char **words)
{
	void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL), *parent, *first, *second, *send, *receive;
	event_t event;
	int mask = 0, result;

	if (count < 2 || !library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	profiler = dlsym(library, "ncclProfiler_v" STRING(VERSION));
	if (!profiler)
		return 2;
#if VERSION == 4
	result = profiler->init(&context, &mask, "a \"name\"\n", 0xfedcba9876543210u, 2, 8, 3, log_line);
#else
	result = profiler->init(&context, 0xfedcba9876543210u, &mask, "a \"name\"\n", 2, 8, 3, log_line);
#endif
	if (result != ncclSuccess)
		return 3;
	printf("%s %x\n", profiler->name, mask);

	parent = group();
	first = collective(parent, "AllReduce", 7);
	second = collective(parent, "Broadcast", 0);
	stop(first);
	stop(second);
	stop(parent);

	send = proxy(first, getpid(), 1);
	receive = proxy(first, getpid(), 0);
	state(send, ncclProfilerProxyOpInProgress_v4, 0);
	for (int number = 0; number < 2; number++) {
		step(send, number, 1, 0x11, 524288, 0);
		step(receive, number, 0, 0x12, 524288, 0);
	}
	stop(send);
	stop(receive);

	memset(&event, 0, sizeof event);
	event.type = ncclProfileP2p;
	event.rank = 3;
	event.p2p.func = "Send";
	event.p2p.datatype = "ncclInt8";
	event.p2p.count = 4096;
	event.p2p.peer = 6;
	event.p2p.nChannels = 1;
	stop(start(&event));

	stop(proxy(first, getpid() + 1, 1)); /* PXN: the parent is a pointer of another process */

	send = proxy(second, getpid(), 1);
	step(send, 0, 1, 0x11, 524288, 1);
	if (count > 2 && !strcmp(words[2], "hang")) {
		puts("hangs");
		fflush(stdout);
		pause();
	}
	profiler->finalize(context);
	dlclose(library);
	return 0;
}
