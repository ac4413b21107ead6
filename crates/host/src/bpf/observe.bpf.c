// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches the vCPUs from the scheduler's tracepoints, keeps their figures and publishes to their guests.
 *
 * Cost: a context switch between threads that are no vCPUs costs two failed lookups. A vCPU's switch costs a handful of
 * compare-and-swaps on its own page. A pCPU that becomes free for vCPUs, or no more, looks at ENTRAIN_PCPU_SLOTS
 * entries, and at ENTRAIN_DOMAIN_SLOTS more when it is the first or the last such of its cache domain; nothing depends
 * on the number of VMs.
 */
#include "observe/page.bpf.h"
#include "observe/switch.bpf.h"
#include "observe/doorbell.bpf.h"
#include "observe/calls.bpf.h"
#include "observe/levels.bpf.h"
#include "observe/frequency.bpf.h"
#include "observe/selftest.bpf.h"

char LICENSE[] SEC("license") = "GPL";
