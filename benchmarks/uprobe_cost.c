/*
 * What a uprobe costs the program: nanoseconds of processor time a call, without it and with one that only counts.
 * Needs root or CAP_PERFMON. The probed instruction is a nop, which the kernel emulates, or another (-DFIRST='""'),
 * which it single-steps.
 *
 *   gcc -O2 -fcf-protection=none -no-pie -o /tmp/uprobe_cost benchmarks/uprobe_cost.c && /tmp/uprobe_cost
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef FIRST
#define FIRST "nop"
#endif
#define CALLS 200000
#define LOADED_AT 0x400000ul /* by a linker without -pie */

__attribute__((noinline)) static int probed(int x)
{
    __asm__ volatile(FIRST);
    return x + 1;
}

static double a_call(void)
{
    struct timespec from, to;
    volatile int sum = 0;
    int i;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (i = 0; i < CALLS; i++)
        sum += probed(i);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / CALLS;
}

int main(void)
{
    struct perf_event_attr attr = {.size = sizeof attr};
    FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    char path[256] = {0};
    long long counted = 0;
    double without = a_call();
    int fd, i;

    if (!type || fscanf(type, "%u", &attr.type) != 1 || readlink("/proc/self/exe", path, sizeof path - 1) < 0) {
        fprintf(stderr, "this kernel has no uprobes\n");
        return 1;
    }
    fclose(type);
    attr.config1 = (unsigned long)path;
    attr.config2 = (unsigned long)probed - LOADED_AT;
    fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
    if (fd < 0) {
        fprintf(stderr, "perf_event_open: %s\n", strerror(errno));
        return 1;
    }
    for (i = 0; i < 5; i++)
        printf("%.1f ns a call, without %.1f\n", a_call(), without);
    return read(fd, &counted, sizeof counted) != sizeof counted || counted != 5LL * CALLS;
}
