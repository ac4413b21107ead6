/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Relaxed co-scheduling: a CPU that chooses its next task may take, instead of the one whose turn it is, a vCPU whose
 * sibling runs at this moment and depends on it, if that one's turn is near enough. Strict gangs leave CPUs idle and
 * hurt other VMs; this never idles, and moves a vCPU forward by at most `skew` of virtual time, for which it pays by
 * waiting longer afterwards, because its clock is then ahead.
 */
#ifndef ENTRAIN_CORUN_H
#define ENTRAIN_CORUN_H

#include "policy.h"
#include "fair.h"

struct entrain_corun_in {
	entrain_u64 first_vtime; /* of the task whose turn it is */
	entrain_u64 vtime;	 /* of the candidate */
	entrain_u32 sibling;	 /* a sibling of the candidate runs on another CPU */
	entrain_u32 depends;	 /* and its VM has shown dependence of late: spun, yielded or sent interrupts */
	entrain_u32 first_waits; /* the one whose turn it is was woken and is latency-critical */
};

/* Whether the candidate goes before the task whose turn it is. */
ENTRAIN_POLICY int entrain_corun(const struct entrain_corun_in *in, entrain_u64 skew)
{
	if (!in->sibling || !in->depends || in->first_waits)
		return 0;
	return !entrain_before(in->first_vtime + skew, in->vtime);
}

#endif /* ENTRAIN_CORUN_H */
