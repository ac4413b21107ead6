// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches the vCPUs where the kernel cannot hold a guest's page (`__uptr` in task storage, Linux 6.13): the same
 * figures as observe.bpf.c from the same tracepoints, on any kernel with BTF since 6.1. No guest is told anything.
 *
 * It is an object of its own since such a kernel refuses the map of the pages with all that refers to it, and calls of
 * kernel functions that it does not have.
 */
#include "observe/no_page.bpf.h"
#include "observe/switch.bpf.h"
#include "observe/levels.bpf.h"

char LICENSE[] SEC("license") = "GPL";
