/* SPDX-License-Identifier: GPL-2.0-only */
/* The context of selftest.bpf.c's program; see src/selftest.rs. */
#ifndef ENTRAIN_SELFTEST_H
#define ENTRAIN_SELFTEST_H

struct entrain_hammer {
	__u32 vcpu;   /* in: whose page; the caller runs there */
	__u32 levels; /* in: preempt_disable levels to nest, 0..4 */
	__u32 loops;  /* in: additions of this call */
	__s32 error;  /* 0, -ENOENT: no such page, -ENOSYS: this kernel's BPF can't disable preemption */
	__u64 trips;  /* round trips of this call */
};

#endif /* ENTRAIN_SELFTEST_H */
