/* SPDX-License-Identifier: GPL-2.0-only */
/* The clock of each CPU, and how late it was. */
#ifndef CLOCK_H
#define CLOCK_H

#include "board.h"

#define PERIOD_US 2000

void clock_start(unsigned int cpu, unsigned int nr_cpus);
uint64_t clock_ns(void);
uint64_t clock_period(void); /* in counts */
uint64_t clock_due(unsigned int cpu);

/* What is counted from here on, until it is reported. */
void clock_measure(bool on);
void clock_report(unsigned int nr_cpus);

/* One line of JSON: a figure of `thousandths` / 1000. */
void print_figure(const char *metric, const char *unit, uint64_t thousandths);

/* main.c: what the guest's kernel does at a tick, inside of the interrupt. */
void kernel_tick(unsigned int cpu);

#endif
