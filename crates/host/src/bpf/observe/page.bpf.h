/* SPDX-License-Identifier: GPL-2.0-only */
/* A vCPU's thread and its guest's page, where the kernel holds both in task storage. Else: no_page.bpf.h. */
#ifndef ENTRAIN_OBSERVE_PAGE_BPF_H
#define ENTRAIN_OBSERVE_PAGE_BPF_H

#include "hint.bpf.h"

static __always_inline void vcpu__publish(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing, __u32 instant)
{
	vcpu->instant = instant;
	if (!pairing)
		return;
	page__put_state(vcpu, pairing);
	page__put_instant(vcpu, pairing);
}

/* What a pCPU can do now, in one word. */
static __always_inline __u32 pcpu__level(const struct entrain_pcpu *pcpu)
{
	return READ_ONCE(pcpu->capacity) << 16 | READ_ONCE(pcpu->perf);
}

/* Tells the guest of the vCPU that runs here what this pCPU can do, where that is not what it was told last. */
static __always_inline void vcpu__tell_level(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
					     struct entrain_pcpu *pcpu)
{
	__u32 level = pcpu__level(pcpu);

	if (!pairing || vcpu->level_told == level)
		return;
	vcpu->level_told = level;
	pcpu->levels++;
	page__put_level(vcpu, pairing, pcpu);
}

/* Compares the preempt count with what the guest's self-test says it must be. */
static __always_inline void selftest__sample(struct entrain_pairing *pairing, __u32 count)
{
	struct entrain_page *page = pairing->page;
	__u64 levels;

	if (!(extra_features & ENTRAIN_F_SELFTEST) || !(pairing->features & ENTRAIN_F_SELFTEST) || !page)
		return;
	levels = READ_ONCE(page->selftest_guest.levels);
	/* In the guest's interrupt handlers the count has levels of its own. */
	if (!levels || count & ~0xff)
		return;
	page->selftest_host.samples++;
	if ((count & 0xff) == levels - 1)
		page->selftest_host.matches++;
}

/* Reads whether a vCPU that is switched out while runnable is inside a critical section; `sampled`: that was done. */
static __always_inline void vcpu__count_section(struct entrain_vcpu *vcpu, struct entrain_pairing *pairing,
						bool sampled, bool involuntary)
{
	if (!vcpu->preempt_layout)
		return;
	if (!sampled)
		vcpu__sample(vcpu, pairing, ENTRAIN_CRITICAL_UNKNOWN, vcpu__spins(vcpu, pairing));
	if (!vcpu->counted)
		return;
	vcpu->in_cs = vcpu->level == ENTRAIN_CRITICAL_SECTION;
	vcpu->samples += involuntary;
	vcpu->preemptions_cs += involuntary && vcpu->in_cs;
	if (pairing)
		selftest__sample(pairing, vcpu->preempt_count);
}

/* A vCPU's thread ends: what storage holds of it goes with it. */
static __always_inline void vcpu__leaves(struct task_struct *task)
{
}

#endif /* ENTRAIN_OBSERVE_PAGE_BPF_H */
