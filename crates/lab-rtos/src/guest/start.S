/* SPDX-License-Identifier: GPL-2.0-only */
/* Entry of all CPUs (EL1, MMU off) and the exception vectors. */

#define STACK_SHIFT 14 /* board.c: STACK_SIZE */

	.section .text.start, "ax"
	.global _start, secondary_start
_start:
	mov	x0, #0
/* x0: the CPU's number, as PSCI's context. */
secondary_start:
	mov	x19, x0
	ldr	x1, =stacks
	add	x2, x19, #1
	add	x1, x1, x2, lsl #STACK_SHIFT
	mov	sp, x1
	ldr	x1, =vectors
	msr	vbar_el1, x1
	/* Attribute 0: device memory; 1: write-back. */
	mov	x1, #0xff00
	msr	mair_el1, x1
	/* 39-bit addresses from TTBR0 alone, 4 KiB pages, cached and shared walks, 40-bit physical addresses. */
	ldr	x1, =(25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23 | 2 << 32)
	msr	tcr_el1, x1
	ldr	x1, =table
	msr	ttbr0_el1, x1
	isb
	tlbi	vmalle1
	dsb	nsh
	isb
	/* The bits that are always 1, MMU, caches. */
	ldr	x1, =(0x30d00800 | 1 << 0 | 1 << 2 | 1 << 12)
	msr	sctlr_el1, x1
	isb
	mov	x0, x19
	bl	cpu_main
	b	.

	.macro	fault
	.balign	0x80
	mrs	x0, esr_el1
	mrs	x1, elr_el1
	mrs	x2, far_el1
	b	board_fault
	.endm

	.text
	.balign	0x800
vectors:
	fault
	fault
	fault
	fault
	fault
	.balign	0x80
	b	irq
	fault
	fault
	fault
	fault
	fault
	fault
	fault
	fault
	fault
	fault

/* Handlers run with interrupts masked, so ELR and SPSR stay in their registers. */
irq:
	sub	sp, sp, #160
	stp	x0, x1, [sp]
	stp	x2, x3, [sp, #16]
	stp	x4, x5, [sp, #32]
	stp	x6, x7, [sp, #48]
	stp	x8, x9, [sp, #64]
	stp	x10, x11, [sp, #80]
	stp	x12, x13, [sp, #96]
	stp	x14, x15, [sp, #112]
	stp	x16, x17, [sp, #128]
	stp	x18, x30, [sp, #144]
	bl	board_irq
	ldp	x0, x1, [sp]
	ldp	x2, x3, [sp, #16]
	ldp	x4, x5, [sp, #32]
	ldp	x6, x7, [sp, #48]
	ldp	x8, x9, [sp, #64]
	ldp	x10, x11, [sp, #80]
	ldp	x12, x13, [sp, #96]
	ldp	x14, x15, [sp, #112]
	ldp	x16, x17, [sp, #128]
	ldp	x18, x30, [sp, #144]
	add	sp, sp, #160
	eret
