/* SPDX-License-Identifier: GPL-2.0-only */
/* What a VM's class changes for its vCPUs: the bounds of extensions and the credit of a vCPU that wakes. */
#ifndef ENTRAIN_SCHED_CLASS_BPF_H
#define ENTRAIN_SCHED_CLASS_BPF_H

#include "state.bpf.h"

/* By process id of the VMM; written by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SCHED_MAX_VMS);
	__type(key, __s32);
	__type(value, struct sched_class);
} sched_classes SEC(".maps");

/* Raised by the daemon after each change of sched_classes. */
__u32 class_epoch;

/* A vCPU's class. Once per change it is copied into the task, so that the rule costs one comparison where it is used.
 */
static __always_inline struct sched_class *task__class(struct task_ctx *t)
{
	__u32 epoch = READ_ONCE(class_epoch) + 1;
	struct sched_class none = {SCHED_CLASS_DEFAULT, SCHED_CLASS_DEFAULT, SCHED_CLASS_DEFAULT, SCHED_CLASS_DEFAULT};
	struct sched_class *given;
	__s32 tgid = t->pub.tgid;

	if (t->class_epoch != epoch) {
		given = bpf_map_lookup_elem(&sched_classes, &tgid);
		t->class = given ? *given : none;
		t->class_epoch = epoch;
	}
	return &t->class;
}

static __always_inline __u64 class__or(__u64 value, __u64 tunable)
{
	return value == SCHED_CLASS_DEFAULT ? tunable : value;
}

/* Bounds of a vCPU's extensions. */
static __always_inline struct entrain_extend_limits task__extend_limits(struct task_ctx *t)
{
	struct sched_class *class = task__class(t);
	struct entrain_extend_limits l = {
		.step = extend_step_ns,
		.event = class__or(class->event, extend_event_ns),
		.burst = class__or(class->burst, extend_burst_ns),
		.rate_ppm = class__or(class->rate_ppm, extend_rate_ppm),
	};

	return l;
}

/* Credit of a task that wakes. The operator's word, in the vCPU's class, counts more than its guest's. */
static __always_inline __u64 task__credit(struct task_ctx *t, bool urgent)
{
	__u64 target = t->pub.vcpu ? task__class(t)->latency : SCHED_CLASS_DEFAULT;

	if (target == SCHED_CLASS_DEFAULT)
		return urgent ? credit_max_ns : credit_ns;
	return entrain_latency_credit(target, credit_max_ns);
}

#endif /* ENTRAIN_SCHED_CLASS_BPF_H */
