/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who causes it: noted on the sender's CPU when work is queued, an IPI is sent or a thread is woken there for a watched
 * CPU, and found again when it takes effect. Every map forgets its oldest entries: work can be cancelled, IPIs can
 * merge.
 */
#ifndef ENTRAIN_ISOLATE_WATCH_SENDER_H
#define ENTRAIN_ISOLATE_WATCH_SENDER_H

#include "state.bpf.h"

struct sender {
	char comm[WATCH_COMM];
	char what[WATCH_COMM]; /* of work: its workqueue */
	__u64 cgroup;
	__u64 func; /* of a function call: what is called */
	__u32 pid;
	__s32 stack;
	__u32 unbound; /* of work: any CPU may run it */
	__u32 pad;
};

struct ipi {
	__u32 cpu;
	__u32 kind;
};

/* Stacks whose hashes collide are left out: many entries make that rare. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 16384);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, WATCH_STACK * sizeof(__u64));
} stacks SEC(".maps");

/* Work item -> who queued it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct sender);
} queued SEC(".maps");

/* CPU and kind of IPI -> who sent the last one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ipi);
	__type(value, struct sender);
} sent SEC(".maps");

/* Call descriptor of a function call -> who asked for it; more exact than `sent` where the kernel has it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct sender);
} calls SEC(".maps");

/* Thread -> who woke it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct sender);
} wakers SEC(".maps");

static __always_inline void sender__fill(void *ctx, struct sender *sender)
{
	bpf_get_current_comm(sender->comm, sizeof(sender->comm));
	sender->cgroup = bpf_get_current_cgroup_id();
	sender->pid = bpf_get_current_pid_tgid() >> 32;
	sender->stack = bpf_get_stackid(ctx, &stacks, BPF_F_FAST_STACK_CMP);
}

static __always_inline void sender__put(struct frame *frame, const struct sender *sender)
{
	__builtin_memcpy(frame->key.sender, sender->comm, WATCH_COMM);
	frame->key.cgroup = sender->cgroup;
	frame->key.stack = sender->stack;
	frame->pid = sender->pid;
}

#endif /* ENTRAIN_ISOLATE_WATCH_SENDER_H */
