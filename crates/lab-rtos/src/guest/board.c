// SPDX-License-Identifier: GPL-2.0-only
/* PL011 for output, PSCI for power, GICv3 for the interrupt of the virtual timer. */
#include "board.h"

#define UART	    0x09000000UL
#define GICD	    0x08000000UL
#define GICR	    0x080a0000UL /* of CPU 0; the others follow */
#define GICR_STRIDE 0x20000UL
#define GICR_SGI    0x10000UL
#define TIMER_INTID 27

#define PSCI_SYSTEM_OFF 0x84000008UL
#define PSCI_CPU_ON	0xc4000003UL

#define STACK_SIZE 16384

/* Identity map: the first GiB holds devices, the next three are RAM. Of blocks of 1 GiB one table is enough. */
#define BLOCK_DEVICE (1UL | 0UL << 2 | 1UL << 10 | 3UL << 53)
#define BLOCK_RAM    (1UL | 1UL << 2 | 3UL << 8 | 1UL << 10)
uint64_t table[512] __attribute__((aligned(4096))) = {
	[0] = 0UL << 30 | BLOCK_DEVICE,
	[1] = 1UL << 30 | BLOCK_RAM,
	[2] = 2UL << 30 | BLOCK_RAM,
	[3] = 3UL << 30 | BLOCK_RAM,
};

char stacks[MAX_CPUS][STACK_SIZE] __attribute__((aligned(4096)));

extern char secondary_start[];
void board_irq(void);
_Noreturn void board_fault(uint64_t esr, uint64_t elr, uint64_t far);

static volatile uint32_t *at(uint64_t address)
{
	return (volatile uint32_t *)address;
}

static int64_t psci(uint64_t call, uint64_t a, uint64_t b, uint64_t c)
{
	register uint64_t x0 __asm__("x0") = call;
	register uint64_t x1 __asm__("x1") = a;
	register uint64_t x2 __asm__("x2") = b;
	register uint64_t x3 __asm__("x3") = c;

	__asm__ volatile("hvc #0"
			 : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3)::"memory", "x4", "x5", "x6", "x7", "x8", "x9", "x10",
			   "x11", "x12", "x13", "x14", "x15", "x16", "x17");
	return (int64_t)x0;
}

_Noreturn void board_off(void)
{
	psci(PSCI_SYSTEM_OFF, 0, 0, 0);
	for (;;)
		__asm__ volatile("wfi");
}

void board_print(const char *text)
{
	while (*text)
		*at(UART) = (uint8_t)*text++;
}

void board_print_number(uint64_t number)
{
	char text[21], *digit = text + sizeof(text) - 1;

	*digit = 0;
	do
		*--digit = '0' + number % 10;
	while (number /= 10);
	board_print(digit);
}

_Noreturn void board_fault(uint64_t esr, uint64_t elr, uint64_t far)
{
	board_print("\nfault: ESR ");
	board_print_number(esr);
	board_print(", at ");
	board_print_number(elr);
	board_print(", address ");
	board_print_number(far);
	board_print("\n");
	board_off();
}

/* Starts one CPU after the other until there is none; returns how many run. */
unsigned int board_start_others(void)
{
	unsigned int cpu;

	for (cpu = 1; cpu < MAX_CPUS; cpu++)
		if (psci(PSCI_CPU_ON, cpu, (uint64_t)secondary_start, cpu))
			break;
	return cpu;
}

void board_init(unsigned int cpu)
{
	uint64_t frame = GICR + cpu * GICR_STRIDE;

	if (cpu == 0)
		*at(GICD) = 1 << 4 | 1 << 1; /* affinity routing, group 1 */
	*at(frame + 0x14) &= ~(1U << 1);     /* awake */
	while (*at(frame + 0x14) & 1 << 2)
		;
	*at(frame + GICR_SGI + 0x80) = ~0U; /* all in group 1 */
	*(volatile uint8_t *)(frame + GICR_SGI + 0x400 + TIMER_INTID) = 0x80;
	*at(frame + GICR_SGI + 0x100) = 1U << TIMER_INTID;
	__asm__ volatile("msr s3_0_c12_c12_5, %0; isb" ::"r"(7UL)); /* ICC_SRE */
	__asm__ volatile("msr s3_0_c4_c6_0, %0" ::"r"(0xffUL));	    /* ICC_PMR */
	__asm__ volatile("msr s3_0_c12_c12_7, %0; isb" ::"r"(1UL)); /* ICC_IGRPEN1 */
}

void board_timer(uint64_t at)
{
	__asm__ volatile("msr cntv_cval_el0, %0; msr cntv_ctl_el0, %1; isb" ::"r"(at), "r"(1UL));
}

void board_irq(void)
{
	uint64_t intid;

	__asm__ volatile("mrs %0, s3_0_c12_c12_0; dsb sy" : "=r"(intid)); /* ICC_IAR1 */
	if (intid == TIMER_INTID)
		clock_interrupt(this_cpu());
	if (intid < 1020)
		__asm__ volatile("msr s3_0_c12_c12_1, %0; isb" ::"r"(intid)); /* ICC_EOIR1 */
}
