/* SPDX-License-Identifier: GPL-2.0-only */
/* QEMU's board `virt`: what the guest needs of it. */
#ifndef BOARD_H
#define BOARD_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_CPUS   16
#define PARAMETERS 0x40200000

struct parameters {
	uint64_t measure_ms;
	uint64_t wait_ms;
	uint64_t duty; /* percent */
	uint64_t offer;
};

static inline const volatile struct parameters *parameters(void)
{
	return (const volatile struct parameters *)PARAMETERS;
}

/* The CPU's counter; not read before what comes before it. */
static inline uint64_t counter(void)
{
	uint64_t now;

	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(now)::"memory");
	return now;
}

static inline uint64_t counter_hz(void)
{
	uint64_t hz;

	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
	return hz;
}

static inline void irq_on(void)
{
	__asm__ volatile("msr daifclr, #2" ::: "memory");
}

static inline void irq_off(void)
{
	__asm__ volatile("msr daifset, #2" ::: "memory");
}

/* board.c. The number of a CPU is its MPIDR's affinity 0, as QEMU numbers up to 16 of them. */
void board_init(unsigned int cpu); /* on each CPU: interrupts of its timer */
unsigned int board_start_others(void);
void board_timer(uint64_t at); /* the next interrupt of this CPU's timer, on the counter */
void board_print(const char *text);
void board_print_number(uint64_t number);
_Noreturn void board_off(void);

/* Called by start.S and board.c. */
_Noreturn void cpu_main(unsigned int cpu);
void clock_interrupt(unsigned int cpu);

static inline unsigned int this_cpu(void)
{
	uint64_t mpidr;

	__asm__ volatile("mrs %0, mpidr_el1" : "=r"(mpidr));
	return mpidr & 0xf;
}

#endif
