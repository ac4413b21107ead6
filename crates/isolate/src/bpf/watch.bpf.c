// SPDX-License-Identifier: GPL-2.0-only
/*
 * Attributes every interruption of the watched CPUs to its cause.
 *
 * Cost: an event on another CPU, or for another CPU, ends after one test of a bit mask. Nothing is sampled and nothing
 * runs by itself, so a CPU that is not interrupted is not touched. Programs whose tracepoint the kernel lacks are not
 * loaded (src/watch/programs.rs).
 */
#include "watch/ipi.bpf.h"
#include "watch/irq.bpf.h"
#include "watch/softirq.bpf.h"
#include "watch/timer.bpf.h"
#include "watch/work.bpf.h"
#include "watch/task.bpf.h"

char LICENSE[] SEC("license") = "GPL";
