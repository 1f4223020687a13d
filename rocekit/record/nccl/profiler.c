/* A profiler plug-in of NCCL that writes rocekit's journal: communicators, collectives, proxy operations, their
 * steps, and the work requests of each.
 *
 * Handles that NCCL keeps for us are numbers, not addresses: a handle may come again long after its event was
 * stopped (a collective's, when a CUDA graph is launched again), and from another process (PXN), where an
 * address would mean something else.
 */
#define _GNU_SOURCE
#include "interface.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { LINE = 2048, NAME = 256, GIDS = 64, FLUSH_NS = 200000000 };

/* A communicator. NCCL's context is its place in the table, not its address: with PXN, NCCL hands contexts of
 * other processes over. It stays in the table when it is closed: late events may name it.
 */
struct communicator {
	uint64_t hash;
	int rank;
};

enum { MOST_COMMUNICATORS = 1 << 16 };
static struct communicator table[MOST_COMMUNICATORS];
static unsigned made;

/* What a handle is, in its lowest bits. */
enum tag { OPERATION = 1, PROXY_OP = 2, STEP = 3, NETWORK = 4 };
enum { TAG_BITS = 3, STEP_BITS = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static FILE *journal;
static int communicators;
static bool flushing;
static bool tell_steps;
static pthread_t flusher;
static char host[NAME];
static uint64_t last_operation, last_proxy_op;

static void *handle_of(enum tag tag, uint64_t number, bool is_send, unsigned step)
{
	uint64_t packed = (number << 1 | is_send) << STEP_BITS | (step & ((1u << STEP_BITS) - 1));

	return (void *)(uintptr_t)(packed << TAG_BITS | tag);
}

static enum tag tag_of(const void *handle)
{
	return (enum tag)((uintptr_t)handle & ((1u << TAG_BITS) - 1));
}

static uint64_t number_of(const void *handle)
{
	return (uintptr_t)handle >> (TAG_BITS + STEP_BITS + 1);
}

static bool is_send(const void *handle)
{
	return (uintptr_t)handle >> (TAG_BITS + STEP_BITS) & 1;
}

static unsigned step_of(const void *handle)
{
	return (uintptr_t)handle >> TAG_BITS & ((1u << STEP_BITS) - 1);
}

/* ---------------------------------------------------------------- lines */

struct line {
	char text[LINE];
	size_t used;
};

static void add(struct line *line, const char *format, ...)
{
	va_list arguments;
	int n;

	if (line->used >= LINE)
		return;
	va_start(arguments, format);
	n = vsnprintf(line->text + line->used, LINE - line->used, format, arguments);
	va_end(arguments);
	line->used += n < 0 ? 0 : (size_t)n;
}

static void add_text(struct line *line, const char *key, const char *value)
{
	int left = NAME;

	if (!value)
		return;
	add(line, ",\"%s\":\"", key);
	for (const unsigned char *c = (const unsigned char *)value; *c && left > 0; c++, left--) {
		if (*c == '"' || *c == '\\')
			add(line, "\\%c", *c);
		else if (*c < 0x20 || *c > 0x7e)
			add(line, "\\u%04x", *c);
		else
			add(line, "%c", *c);
	}
	add(line, "\"");
}

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void begin(struct line *line, const char *event)
{
	line->used = 0;
	add(line, "{\"time_ns\":%llu,\"clock\":\"realtime\",\"mono_ns\":%llu",
	    (unsigned long long)now(CLOCK_REALTIME), (unsigned long long)now(CLOCK_MONOTONIC));
	add_text(line, "host", host);
	add(line, ",\"pid\":%d,\"event\":\"%s\"", (int)getpid(), event);
}

static void end(struct line *line)
{
	add(line, "}\n");
	if (line->used >= LINE) /* cut: names are too long for that, but a half line would be worse */
		return;
	pthread_mutex_lock(&lock);
	if (journal)
		fwrite(line->text, 1, line->used, journal);
	pthread_mutex_unlock(&lock);
}

/* What was told last is in the file soon, also when NCCL hangs or is killed. */
static void *flush_often(void *unused)
{
	struct timespec until;

	(void)unused;
	pthread_mutex_lock(&lock);
	while (flushing) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += FLUSH_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&ended, &lock, &until);
		if (journal)
			fflush(journal);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* ---------------------------------------------------------------- devices */

static void add_gid(struct line *line, const char *text, int *count)
{
	unsigned char gid[16];
	char address[INET6_ADDRSTRLEN];
	static const unsigned char none[16], mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (inet_pton(AF_INET6, text, gid) != 1 || !memcmp(gid, none, 16))
		return;
	if (!memcmp(gid, mapped, 12))
		inet_ntop(AF_INET, gid + 12, address, sizeof address);
	else
		inet_ntop(AF_INET6, gid, address, sizeof address);
	add(line, "%s\"%s\"", (*count)++ ? "," : "", address);
}

/* The addresses of this host's RDMA devices: NCCL names a QP by its number only. */
static void tell_devices(void)
{
	const char *base = getenv("ROCEKIT_NCCL_SYSFS");
	char path[PATH_MAX];
	DIR *devices;
	struct dirent *device;

	base = base ? base : "/sys/class/infiniband";
	devices = opendir(base);
	while (devices && (device = readdir(devices))) {
		struct line line;
		int count = 0;

		if (device->d_name[0] == '.')
			continue;
		begin(&line, "device_opened");
		add_text(&line, "device", device->d_name);
		add(&line, ",\"gids\":[");
		for (int port = 1; port <= 2; port++) {
			for (int index = 0; index < GIDS; index++) {
				char text[64] = "";
				FILE *file;

				snprintf(path, sizeof path, "%s/%s/ports/%d/gids/%d", base, device->d_name, port,
					 index);
				file = fopen(path, "re");
				if (!file)
					break;
				if (fgets(text, sizeof text, file)) {
					text[strcspn(text, "\n")] = 0;
					add_gid(&line, text, &count);
				}
				fclose(file);
			}
		}
		add(&line, "]");
		end(&line);
	}
	if (devices)
		closedir(devices);
}

/* ---------------------------------------------------------------- the journal's file */

/* The path with %h and %p replaced. */
static void path_of_journal(char *path, size_t size)
{
	const char *pattern = getenv("ROCEKIT_NCCL_JOURNAL");
	size_t used = 0;

	if (!pattern || !*pattern)
		pattern = "nccl-%h-%p.journal.jsonl";
	for (; *pattern && used + 1 < size; pattern++) {
		int n = 1;

		if (pattern[0] == '%' && pattern[1] == 'h') {
			n = snprintf(path + used, size - used, "%s", host);
			pattern++;
		} else if (pattern[0] == '%' && pattern[1] == 'p') {
			n = snprintf(path + used, size - used, "%d", (int)getpid());
			pattern++;
		} else {
			path[used] = *pattern;
		}
		used += n < 0 ? 0 : (size_t)n;
	}
	path[used < size ? used : size - 1] = 0;
}

static int open_journal(nccl_logger log)
{
	char path[PATH_MAX];
	bool first;

	pthread_mutex_lock(&lock);
	first = communicators == 0;
	if (first) {
		if (gethostname(host, sizeof host) != 0)
			strcpy(host, "unknown");
		host[sizeof host - 1] = 0;
		tell_steps = strcmp(getenv("ROCEKIT_NCCL_STEPS") ?: "1", "0") != 0;
		path_of_journal(path, sizeof path);
		if (!journal)
			journal = fopen(path, "ae");
		if (!journal) {
			int error = errno;

			pthread_mutex_unlock(&lock);
			if (log)
				log(NCCL_LOG_WARNING, NCCL_SUBSYSTEM_PROFILE, __FILE__, __LINE__,
				    "rocekit: %s cannot be written: %s", path, strerror(error));
			return NCCL_SYSTEM_ERROR;
		}
		setvbuf(journal, NULL, _IOFBF, 1 << 18);
		flushing = true;
		if (pthread_create(&flusher, NULL, flush_often, NULL) != 0)
			flushing = false;
	}
	communicators++;
	pthread_mutex_unlock(&lock);
	if (first)
		tell_devices();
	return NCCL_SUCCESS;
}

static void close_journal(void)
{
	bool wait = false;

	pthread_mutex_lock(&lock);
	if (communicators > 0 && --communicators == 0) {
		wait = flushing;
		flushing = false;
		pthread_cond_signal(&ended);
	}
	pthread_mutex_unlock(&lock);
	if (wait)
		pthread_join(flusher, NULL); /* NCCL unloads this library now */
	pthread_mutex_lock(&lock);
	if (communicators == 0 && journal) {
		fclose(journal);
		journal = NULL;
	}
	pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- events */

static const struct communicator *communicator_of(const void *context)
{
	uintptr_t place = (uintptr_t)context;

	return place && place <= __atomic_load_n(&made, __ATOMIC_ACQUIRE) ? &table[place - 1] : NULL;
}

static void add_communicator(struct line *line, const void *context)
{
	const struct communicator *own = communicator_of(context);

	if (own)
		add(line, ",\"communicator\":\"0x%llx\",\"rank\":%d", (unsigned long long)own->hash, own->rank);
}

static int start(void *context, void **handle, struct nccl_event *event, uint64_t type)
{
	struct line line;

	*handle = NULL; /* kinds that are not wanted come too, as parents of those that are */
	switch (type) {
	case NCCL_COLLECTIVE: {
		uint64_t number = __atomic_add_fetch(&last_operation, 1, __ATOMIC_RELAXED);

		begin(&line, "nccl_operation");
		add(&line, ",\"operation\":%llu,\"kind\":\"collective\"", (unsigned long long)number);
		add_communicator(&line, context);
		add_text(&line, "function", event->collective.function);
		add(&line, ",\"sequence\":%llu,\"count\":%zu,\"channels\":%u",
		    (unsigned long long)event->collective.sequence, event->collective.count,
		    event->collective.channels);
		if (event->collective.root >= 0)
			add(&line, ",\"root\":%d", event->collective.root);
		add_text(&line, "datatype", event->collective.datatype);
		add_text(&line, "algorithm", event->collective.algorithm);
		add_text(&line, "protocol", event->collective.protocol);
		*handle = handle_of(OPERATION, number, false, 0);
		break;
	}
	case NCCL_POINT_TO_POINT: {
		uint64_t number = __atomic_add_fetch(&last_operation, 1, __ATOMIC_RELAXED);

		begin(&line, "nccl_operation");
		add(&line, ",\"operation\":%llu,\"kind\":\"p2p\"", (unsigned long long)number);
		add_communicator(&line, context);
		add_text(&line, "function", event->point_to_point.function);
		add(&line, ",\"count\":%zu", event->point_to_point.count);
		if (event->point_to_point.peer >= 0)
			add(&line, ",\"peer\":%d", event->point_to_point.peer);
		add_text(&line, "datatype", event->point_to_point.datatype);
		*handle = handle_of(OPERATION, number, false, 0);
		break;
	}
	case NCCL_PROXY_OP: {
		uint64_t number = __atomic_add_fetch(&last_proxy_op, 1, __ATOMIC_RELAXED);
		bool send = event->proxy_op.is_send;

		begin(&line, "nccl_proxy_op");
		add(&line, ",\"proxy_op\":%llu", (unsigned long long)number);
		/* With PXN the operation is another process's, and so are its number and its context. */
		if (event->proxy_op.pid == getpid())
			add_communicator(&line, context);
		if (tag_of(event->parent) == OPERATION)
			add(&line, ",\"operation\":%llu", (unsigned long long)number_of(event->parent));
		add(&line, ",\"operation_pid\":%d,\"channel\":%u,\"steps\":%d,\"chunk_bytes\":%d,\"send\":%s",
		    (int)event->proxy_op.pid, event->proxy_op.channel, event->proxy_op.steps,
		    event->proxy_op.chunk_bytes, send ? "true" : "false");
		if (event->proxy_op.peer >= 0)
			add(&line, ",\"peer\":%d", event->proxy_op.peer);
		*handle = handle_of(PROXY_OP, number, send, 0);
		break;
	}
	case NCCL_PROXY_STEP:
		if (tag_of(event->parent) == PROXY_OP)
			*handle = handle_of(STEP, number_of(event->parent), is_send(event->parent),
					    (unsigned)event->step.number);
		return NCCL_SUCCESS; /* its states are told */
	case NCCL_NETWORK: {
		const struct nccl_net_qp *told = event->network.data;
		static const char *const opcodes[] = {"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND",
						      "SEND_WITH_IMM", "RDMA_READ"};

		if (event->network.plugin != ((int64_t)NCCL_NET_IB << 16 | NCCL_NET_IB_VERSION) || !told ||
		    told->type != NCCL_NET_QP || tag_of(event->parent) != STEP)
			return NCCL_SUCCESS;
		begin(&line, "nccl_wr");
		add(&line, ",\"proxy_op\":%llu,\"step\":%u,\"qpn\":%u,\"wr_id\":%llu,\"send\":%s",
		    (unsigned long long)number_of(event->parent), step_of(event->parent),
		    (unsigned)told->qp.qpn & 0xffffff, (unsigned long long)told->qp.wr_id,
		    is_send(event->parent) ? "true" : "false");
		/* Of a receive NCCL sets neither opcode nor length. */
		if (is_send(event->parent)) {
			add(&line, ",\"length\":%zu", told->qp.length);
			if (told->qp.opcode >= 0 && told->qp.opcode < (int)(sizeof opcodes / sizeof *opcodes))
				add_text(&line, "opcode", opcodes[told->qp.opcode]);
		}
		*handle = handle_of(NETWORK, number_of(event->parent), is_send(event->parent),
				    step_of(event->parent));
		break;
	}
	default:
		return NCCL_SUCCESS;
	}
	end(&line);
	return NCCL_SUCCESS;
}

static int start_4(void *context, void **handle, struct nccl_event *event)
{
	return start(context, handle, event, event->type.of_version_4);
}

static int start_5(void *context, void **handle, struct nccl_event *event)
{
	return start(context, handle, event, event->type.of_version_5);
}

static void tell_step(const void *handle, const char *state, const size_t *bytes)
{
	struct line line;

	if (!tell_steps)
		return;
	begin(&line, "nccl_step");
	add(&line, ",\"proxy_op\":%llu,\"step\":%u,\"state\":\"%s\"", (unsigned long long)number_of(handle),
	    step_of(handle), state);
	if (bytes)
		add(&line, ",\"length\":%zu", *bytes);
	end(&line);
}

static int stop(void *handle)
{
	struct line line;

	switch (tag_of(handle)) {
	case PROXY_OP:
		begin(&line, "nccl_proxy_op_ended");
		add(&line, ",\"proxy_op\":%llu", (unsigned long long)number_of(handle));
		end(&line);
		break;
	case STEP:
		tell_step(handle, "ended", NULL);
		break;
	default: /* a collective is stopped when it is enqueued: that says nothing of its end */
		break;
	}
	return NCCL_SUCCESS;
}

static int state(void *handle, int state, union nccl_state_arguments *arguments)
{
	if (tag_of(handle) != STEP)
		return NCCL_SUCCESS;
	switch (state) {
	case NCCL_SEND_GPU_WAIT:
		tell_step(handle, "gpu_wait", NULL);
		break;
	case NCCL_SEND_PEER_WAIT:
		tell_step(handle, "credit_wait", NULL);
		break;
	case NCCL_SEND_WAIT: /* the network has it */
		tell_step(handle, "send_wait", arguments ? &arguments->step.bytes : NULL);
		break;
	case NCCL_RECV_WAIT:
		tell_step(handle, "receive_wait", NULL);
		break;
	case NCCL_RECV_FLUSH_WAIT:
		tell_step(handle, "flush_wait", arguments ? &arguments->step.bytes : NULL);
		break;
	case NCCL_RECV_GPU_WAIT:
		tell_step(handle, "consumer_wait", NULL);
		break;
	default:
		break;
	}
	return NCCL_SUCCESS;
}

/* ---------------------------------------------------------------- communicators */

static void tell_communicator(const void *context, const char *state, const char *name, int nodes, int ranks)
{
	struct line line;

	begin(&line, "nccl_communicator");
	add(&line, ",\"state\":\"%s\"", state);
	add_communicator(&line, context);
	if (ranks)
		add(&line, ",\"ranks\":%d,\"nodes\":%d", ranks, nodes);
	add_text(&line, "name", name);
	end(&line);
}

static int init_5(void **context, uint64_t hash, int *wanted, const char *name, int nodes, int ranks, int rank,
		  nccl_logger log)
{
	unsigned place;
	int result;

	*context = NULL;
	result = open_journal(log);
	if (result != NCCL_SUCCESS)
		return result;
	pthread_mutex_lock(&lock);
	place = made;
	if (place < MOST_COMMUNICATORS) {
		table[place].hash = hash;
		table[place].rank = rank;
		__atomic_store_n(&made, place + 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	if (place == MOST_COMMUNICATORS) {
		close_journal();
		return NCCL_SYSTEM_ERROR;
	}
	*context = (void *)(uintptr_t)(place + 1);
	__atomic_store_n(wanted,
			 NCCL_COLLECTIVE | NCCL_POINT_TO_POINT | NCCL_PROXY_OP | NCCL_PROXY_STEP | NCCL_NETWORK,
			 __ATOMIC_RELAXED);
	tell_communicator(*context, "opened", name, nodes, ranks);
	return NCCL_SUCCESS;
}

static int init_4(void **context, int *wanted, const char *name, uint64_t hash, int nodes, int ranks, int rank,
		  nccl_logger log)
{
	return init_5(context, hash, wanted, name, nodes, ranks, rank, log);
}

static int finalize(void *context)
{
	if (context) {
		tell_communicator(context, "closed", NULL, 0, 0);
		close_journal();
	}
	return NCCL_SUCCESS;
}

EXPORT const struct nccl_profiler_4 ncclProfiler_v4 = {"rocekit", init_4, start_4, stop, state, finalize};
EXPORT const struct nccl_profiler_5 ncclProfiler_v5 = {"rocekit", init_5, start_5, stop, state, finalize};
EXPORT const struct nccl_profiler_5 ncclProfiler_v6 = {"rocekit", init_5, start_5, stop, state, finalize};
