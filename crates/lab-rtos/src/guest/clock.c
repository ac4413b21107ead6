// SPDX-License-Identifier: GPL-2.0-only
/*
 * A 2 ms clock on each CPU. The definitions are those of `entrain-load tick` (crates/workloads/src/tick.rs): a tick is
 * on time if it comes 0.925 to 1.079 periods after the one before, the reference's bin 6 of 0.154 periods; its jitter
 * is the counter at the tick minus the counter when it was due; what became due meanwhile is missed.
 */
#include "clock.h"

/* Bins of 1/16 of a power of two: a quantile is right to 6 %. */
#define BINS (64 * 16)

struct clock {
	uint64_t due;  /* of the next tick, on the counter */
	uint64_t last; /* tick; 0: none yet while measuring */
	uint64_t count, on_time, missed, ticks;
	uint64_t jitter_max, interval_max;
	uint32_t bins[BINS];
} __attribute__((aligned(64)));

static struct clock clocks[MAX_CPUS];
static volatile bool measuring;

uint64_t clock_period(void)
{
	return counter_hz() * PERIOD_US / 1000000;
}

uint64_t clock_ns(void)
{
	uint64_t now = counter(), hz = counter_hz();

	return now / hz * 1000000000 + now % hz * 1000000000 / hz;
}

uint64_t clock_due(unsigned int cpu)
{
	return clocks[cpu].due;
}

/* The CPUs' ticks are spread over the period, as no system's all come at once. */
void clock_start(unsigned int cpu, unsigned int nr_cpus)
{
	clocks[cpu].due = counter() + clock_period() + clock_period() * cpu / nr_cpus;
	board_timer(clocks[cpu].due);
}

void clock_measure(bool on)
{
	measuring = on;
}

static unsigned int bin_of(uint64_t value)
{
	unsigned int shift;

	if (value < 16)
		return value;
	shift = 63 - __builtin_clzll(value) - 4;
	return shift * 16 + (value >> shift);
}

/* The end of a bin: no less than any value in it. */
static uint64_t bin_end(unsigned int bin)
{
	unsigned int shift = bin / 16;

	if (bin < 32)
		return bin;
	return ((uint64_t)(bin % 16 + 17) << (shift - 1)) - 1;
}

static void record(struct clock *c, uint64_t now, uint64_t ticks)
{
	uint64_t period = clock_period(), jitter = now - c->due, interval = now - c->last;

	c->bins[bin_of(jitter)]++;
	c->count++;
	if (jitter > c->jitter_max)
		c->jitter_max = jitter;
	if (c->last) {
		c->ticks += ticks;
		c->missed += ticks - 1;
		/* Bin 6 of 0.15416 periods each. */
		if (interval * 100000 >= period * 92496 && interval * 100000 < period * 107912)
			c->on_time++;
		if (interval > c->interval_max)
			c->interval_max = interval;
	}
	c->last = now;
}

void clock_interrupt(unsigned int cpu)
{
	struct clock *c = &clocks[cpu];
	uint64_t now = counter(), period = clock_period();
	uint64_t ticks = now < c->due ? 0 : (now - c->due) / period + 1;

	if (ticks && measuring)
		record(c, now, ticks);
	c->due += ticks * period;
	board_timer(c->due);
	kernel_tick(cpu);
}

void print_figure(const char *metric, const char *unit, uint64_t thousandths)
{
	uint64_t rest = thousandths % 1000;

	board_print("{\"metric\":\"");
	board_print(metric);
	board_print("\",\"value\":");
	board_print_number(thousandths / 1000);
	board_print(rest < 10 ? ".00" : rest < 100 ? ".0" : ".");
	board_print_number(rest);
	board_print(",\"unit\":\"");
	board_print(unit);
	board_print("\"}\n");
}

static uint64_t to_ns(uint64_t counts)
{
	return counts * 1000000 / (counter_hz() / 1000);
}

/* A share in millionths needs more digits than a figure has: hundredths of a percent would hide one tick in 2,000. */
static void print_share(const char *metric, uint64_t part, uint64_t of)
{
	uint64_t millionths = part * 1000000 / of, digit;

	board_print("{\"metric\":\"");
	board_print(metric);
	board_print("\",\"value\":");
	board_print_number(millionths / 1000000);
	board_print(".");
	for (digit = 100000; digit; digit /= 10)
		board_print_number(millionths / digit % 10);
	board_print(",\"unit\":\"ratio\"}\n");
}

void clock_report(unsigned int nr_cpus)
{
	static uint32_t bins[BINS];
	struct clock all = {.due = 0};
	uint64_t seen = 0;
	unsigned int cpu, bin;

	for (cpu = 0; cpu < nr_cpus; cpu++) {
		const struct clock *c = &clocks[cpu];

		all.count += c->count;
		all.ticks += c->ticks;
		all.on_time += c->on_time;
		all.missed += c->missed;
		if (c->jitter_max > all.jitter_max)
			all.jitter_max = c->jitter_max;
		if (c->interval_max > all.interval_max)
			all.interval_max = c->interval_max;
		for (bin = 0; bin < BINS; bin++)
			bins[bin] += c->bins[bin];
	}
	if (!all.ticks) {
		board_print("no tick came: measure longer\n");
		return;
	}
	for (bin = 0; bin < BINS - 1 && seen + bins[bin] < all.count * 99 / 100; bin++)
		seen += bins[bin];
	print_figure("jitter_max", "ms", to_ns(all.jitter_max) / 1000);
	print_share("on_time_share", all.on_time, all.ticks);
	print_share("missed_share", all.missed, all.ticks);
	print_figure("jitter_p99", "us", to_ns(bin_end(bin)));
	print_figure("interval_max", "ms", to_ns(all.interval_max) / 1000);
}
