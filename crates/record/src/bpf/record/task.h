/* SPDX-License-Identifier: GPL-2.0-only */
/* The kernel's task as only these programs read it. */
#ifndef ENTRAIN_RECORD_TASK_H
#define ENTRAIN_RECORD_TASK_H

#include "kernel.h"

#define TASK_DEAD 0x80

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info___record {
	__u32 cpu;
};

struct task_struct___record {
	struct thread_info___record thread_info;
	char comm[16];
};

#pragma clang attribute pop

#endif /* ENTRAIN_RECORD_TASK_H */
