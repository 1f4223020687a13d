/* Loaded into perftest's programs by the truth bench: decides what they leave to chance, or breaks what they made.
 *
 * FIRST_PSN=n       their first PSN, which they draw by lrand48.
 * REVOKE_AFTER=n    their memory is deregistered when device rxe1 has got n packets more; requests under way
 *                   for it then meet an R_Key that no longer holds.
 * PATH_MTU_CODE=n   the path MTU of their QPs, whatever both sides have agreed on: 1 is 256 bytes, 5 is 4,096.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const COUNTER = "/sys/class/infiniband/rxe1/ports/1/hw_counters/rcvd_pkts";

long lrand48(void)
{
	const char *psn = getenv("FIRST_PSN");
	return psn ? strtol(psn, NULL, 0) : random();
}

static long arrived(void)
{
	long n = 0;
	FILE *file = fopen(COUNTER, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%ld", &n) != 1)
		n = 0;
	fclose(file);
	return n;
}

static void *take_away(void *mr)
{
	long until = arrived() + strtol(getenv("REVOKE_AFTER"), NULL, 0);
	while (arrived() < until)
		usleep(1000);
	int (*dereg)(void *) = dlsym(RTLD_DEFAULT, "ibv_dereg_mr");
	int result = dereg(mr);
	fprintf(stderr, "revoked: %d\n", result);
	return NULL;
}

static void *watched(void *mr)
{
	pthread_t thread;
	if (mr && getenv("REVOKE_AFTER") && !pthread_create(&thread, NULL, take_away, mr))
		pthread_detach(thread);
	return mr;
}

#undef ibv_reg_mr
void *ibv_reg_mr(void *pd, void *addr, size_t length, int access)
{
	void *(*real)(void *, void *, size_t, int) = dlsym(RTLD_NEXT, "ibv_reg_mr");
	return watched(real(pd, addr, length, access));
}

void *ibv_reg_mr_iova2(void *pd, void *addr, size_t length, unsigned long iova, unsigned access)
{
	void *(*real)(void *, void *, size_t, unsigned long, unsigned) = dlsym(RTLD_NEXT, "ibv_reg_mr_iova2");
	return watched(real(pd, addr, length, iova, access));
}

#define WITH_PATH_MTU (1 << 8)
/* Of struct ibv_qp_attr, whose first three fields are the states and the path MTU. */
int ibv_modify_qp(void *qp, int *attributes, int mask)
{
	int (*real)(void *, int *, int) = dlsym(RTLD_NEXT, "ibv_modify_qp");
	const char *code = getenv("PATH_MTU_CODE");
	if (code && mask & WITH_PATH_MTU)
		attributes[2] = (int)strtol(code, NULL, 0);
	return real(qp, attributes, mask);
}
