// SPDX-License-Identifier: GPL-2.0-only
/*
 * The test's own program for drain.sh: a real-time task that fills per-CPU caches, timed operations that drain
 * them, and the proof by page flags. Static, so that it runs in a machine without libraries.
 *
 *   probe spin CPU SECONDS fifo|other PFNS [dirty]   fills CPU's LRU batch, writes the page numbers, spins
 *   probe write FILE TEXT                            ms that a write took
 *   probe mbind                                      ms of mbind(MPOL_MF_MOVE) as user 1000
 *   probe lru PFNS                                   of how many of the pages the flag LRU is set
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, FRESH = 10, KPF_LRU = 5 };

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static uint64_t read_word(const char *file, uint64_t index)
{
	uint64_t word = 0;
	int fd = open(file, O_RDONLY);

	if (fd < 0 || pread(fd, &word, sizeof(word), index * sizeof(word)) != sizeof(word))
		err(1, "%s", file);
	close(fd);
	return word;
}

static char *pages(size_t count)
{
	char *p = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	madvise(p, count * PAGE, MADV_NOHUGEPAGE);
	return p;
}

/* Objects of several slab caches pass through this CPU's sheaves. */
static void use_slabs(void)
{
	int fd[2];

	if (pipe(fd) == 0) {
		close(fd[0]);
		close(fd[1]);
	}
}

static int spin(int argc, char **argv)
{
	int seconds = atoi(argv[3]), dirty = argc > 6;
	struct sched_param param = {.sched_priority = 50};
	char *fresh = pages(FRESH), *more = pages(4096);
	double end, next;
	FILE *pfns;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(atoi(argv[2]), &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		err(1, "sched_setaffinity");
	pfns = fopen(argv[5], "w");
	if (!pfns)
		err(1, "%s", argv[5]);
	if (!strcmp(argv[4], "fifo") && sched_setscheduler(0, SCHED_FIFO, &param))
		err(1, "sched_setscheduler");
	for (int i = 0; i < 64; i++)
		use_slabs();
	for (int i = 0; i < FRESH; i++)
		fresh[i * PAGE] = 1;
	for (int i = 0; i < FRESH; i++) {
		uint64_t entry = read_word("/proc/self/pagemap", (uintptr_t)&fresh[i * PAGE] / PAGE);

		fprintf(pfns, "%llu\n", (unsigned long long)(entry & ((1ull << 55) - 1)));
	}
	fclose(pfns);
	next = now_ms();
	end = next + seconds * 1e3;
	while (now_ms() < end) {
		if (!dirty || now_ms() < next)
			continue;
		*more = 1;
		more += PAGE;
		use_slabs();
		next += 20;
	}
	return 0;
}

static int timed_write(const char *file, const char *text)
{
	double start = now_ms();
	int fd = open(file, O_WRONLY);
	ssize_t n;

	if (fd < 0)
		err(1, "%s", file);
	n = write(fd, text, strlen(text));
	printf("%.1f\n", now_ms() - start);
	if (n < 0)
		warn("%s", file);
	return 0;
}

static int timed_mbind(void)
{
	unsigned long nodes = 1;
	char *p;
	double start;

	if (setgid(1000) || setuid(1000))
		err(1, "setuid");
	p = pages(16);
	memset(p, 1, 16 * PAGE);
	start = now_ms();
	/* MPOL_BIND 2, MPOL_MF_MOVE 2: no privilege is needed. */
	if (syscall(SYS_mbind, p, 16 * PAGE, 2, &nodes, 64, 2))
		warn("mbind");
	printf("%.1f\n", now_ms() - start);
	return 0;
}

static int count_lru(const char *file)
{
	FILE *pfns = fopen(file, "r");
	unsigned long long pfn;
	int lru = 0;

	if (!pfns)
		err(1, "%s", file);
	while (fscanf(pfns, "%llu", &pfn) == 1)
		lru += read_word("/proc/kpageflags", pfn) >> KPF_LRU & 1;
	printf("%d\n", lru);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 6 && !strcmp(argv[1], "spin"))
		return spin(argc, argv);
	if (argc == 4 && !strcmp(argv[1], "write"))
		return timed_write(argv[2], argv[3]);
	if (argc == 2 && !strcmp(argv[1], "mbind"))
		return timed_mbind();
	if (argc == 3 && !strcmp(argv[1], "lru"))
		return count_lru(argv[2]);
	errx(2, "usage: see the source");
}
