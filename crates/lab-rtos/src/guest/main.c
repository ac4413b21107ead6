// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the CPUs do: an RTOS's tasks, which now and then are in its kernel. The kernel is one critical section that all
 * CPUs share, as in the guest of reference 4: one ticket lock, taken with interrupts masked. It is marked by
 * entrain_guest.h.
 */
#include "clock.h"
#include "entrain_guest.h"

/* A turn: so long outside of the kernel, so long inside, us of a CPU that has nothing else to do. */
#define OUTSIDE_US 60
#define INSIDE_US  5
#define TICK_US	   2
/* What Linux calls a real-time priority of 50, and the idle task. */
#define PRIO_TASK  49
#define PRIO_IDLE  140
#define LATENCY	   100

static struct entrain_page pages[MAX_CPUS] __attribute__((aligned(ENTRAIN_PAGE_SIZE)));
static struct entrain_guest_cpu cpus[MAX_CPUS] __attribute__((aligned(ENTRAIN_LINE_SIZE)));
static struct entrain_guest guest = {.pages = pages, .cpus = cpus};

static struct {
	uint32_t next __attribute__((aligned(64)));
	uint32_t now __attribute__((aligned(64)));
} lock;

/* By CPU: whether a host is paired; times that it was in the kernel. */
static struct {
	uint64_t paired, sections;
} __attribute__((aligned(64))) seen[MAX_CPUS];

static unsigned int nr_cpus;
static uint64_t loops_per_us;
static uint32_t go, stop, stopped;

static void work_loops(uint64_t loops)
{
	while (loops--)
		__asm__ volatile("" ::: "memory");
}

static void work(uint64_t us)
{
	work_loops(us * loops_per_us);
}

/* What 1 us of work is: the fastest of some tries, since a try may be interrupted by the host. */
static void calibrate(void)
{
	uint64_t best = ~0UL, begin, took;
	const uint64_t loops = 100000;
	int i;

	for (i = 0; i < 20; i++) {
		begin = counter();
		work_loops(loops);
		took = counter() - begin;
		if (took < best)
			best = took;
	}
	loops_per_us = loops * (counter_hz() / 1000) / (best ? best : 1) / 1000;
	if (!loops_per_us)
		loops_per_us = 1;
}

/* Waits by WFE, as Linux does on arm64: KVM lets the exclusive monitor's clearing wake it, and may take the CPU away.
 */
static void lock_take(void)
{
	uint32_t ticket = __atomic_fetch_add(&lock.next, 1, __ATOMIC_RELAXED), now;

	__asm__ volatile("sevl" ::: "memory");
	do {
		__asm__ volatile("wfe\n\tldaxr %w0, [%1]" : "=&r"(now) : "r"(&lock.now) : "memory");
	} while (now != ticket);
}

static void lock_give(void)
{
	__atomic_store_n(&lock.now, lock.now + 1, __ATOMIC_RELEASE);
}

/* Interrupts are masked. */
static void in_kernel(unsigned int cpu, uint64_t us)
{
	bool marks = parameters()->offer;

	if (marks)
		entrain_guest_enter(&guest, cpu);
	lock_take();
	work(us);
	lock_give();
	if (marks)
		entrain_guest_leave(&guest, cpu);
	seen[cpu].sections++;
}

static void priority(unsigned int cpu, unsigned int prio, unsigned int latency)
{
	if (parameters()->offer)
		entrain_guest_priority(&guest, cpu, prio, latency);
}

static uint64_t all_paired(void)
{
	uint64_t count = 0;
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpus; cpu++)
		count += __atomic_load_n(&seen[cpu].paired, __ATOMIC_RELAXED);
	return count;
}

static uint64_t all_sections(void)
{
	uint64_t count = 0;
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpus; cpu++)
		count += __atomic_load_n(&seen[cpu].sections, __ATOMIC_RELAXED);
	return count;
}

/* At CPU 0's ticks: begins and ends the measurement, and is one of those measured. */
static bool step(void)
{
	static enum { WAIT, WARM, MEASURE } state = WAIT;
	static uint64_t since, sections;
	uint64_t now = clock_ns(), ms;

	if (!since)
		since = now;
	ms = (now - since) / 1000000;
	switch (state) {
	case WAIT:
		if (ms < parameters()->wait_ms && all_paired() < nr_cpus)
			return false;
		state = WARM;
		break;
	case WARM:
		if (ms < 100)
			return false;
		state = MEASURE;
		sections = all_sections();
		clock_measure(true);
		break;
	case MEASURE:
		if (ms < parameters()->measure_ms)
			return false;
		clock_measure(false);
		print_figure("sections_per_s", "1/s",
			     (all_sections() - sections) * 1000000000 / ((now - since) / 1000));
		print_figure("paired", "1", all_paired() * 1000);
		return true;
	}
	since = now;
	return false;
}

/*
 * From the clock interrupt. The measurement is begun and ended here and not by a task: where each tick waits for the
 * lock longer than a period, as on a host without CPU for the guest, tasks never come to run.
 */
void kernel_tick(unsigned int cpu)
{
	if (parameters()->offer)
		seen[cpu].paired = entrain_guest_tick(&guest, cpu, clock_ns());
	if (__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
		return;
	if (cpu == 0 && step())
		__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	in_kernel(cpu, TICK_US);
}

/* The tasks of one CPU: they work for their share of each period, measured as work, and sleep until its next tick. */
static void tasks(unsigned int cpu)
{
	uint64_t turns = PERIOD_US * parameters()->duty / 100 / (OUTSIDE_US + INSIDE_US), due, turn;

	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		due = clock_due(cpu);
		priority(cpu, PRIO_TASK, LATENCY);
		for (turn = 0; turn < turns; turn++) {
			work(OUTSIDE_US);
			irq_off();
			in_kernel(cpu, INSIDE_US);
			irq_on();
		}
		/* Without sleep where the share is all of the period. */
		if (parameters()->duty >= 100)
			continue;
		priority(cpu, PRIO_IDLE, 0);
		irq_off();
		while (clock_due(cpu) == due) {
			__asm__ volatile("wfi");
			irq_on();
			irq_off();
		}
		irq_on();
	}
}

_Noreturn void cpu_main(unsigned int cpu)
{
	board_init(cpu);
	if (cpu == 0) {
		calibrate();
		nr_cpus = guest.nr_vcpus = board_start_others();
		if (entrain_guest_init(&guest, (uintptr_t)pages, (uintptr_t)cpus, counter()))
			board_print("the page's memory is not as it must be\n");
		__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		__asm__ volatile("yield");
	clock_start(cpu, nr_cpus);
	irq_on();
	tasks(cpu);
	irq_off();
	__atomic_fetch_add(&stopped, 1, __ATOMIC_RELEASE);
	if (cpu == 0) {
		while (__atomic_load_n(&stopped, __ATOMIC_ACQUIRE) < nr_cpus)
			__asm__ volatile("yield");
		clock_report(nr_cpus);
		board_off();
	}
	for (;;)
		__asm__ volatile("wfi");
}
