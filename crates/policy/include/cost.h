/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a switch of tasks costs on this computer, as measured, and the times that follow from it. How long somebody who
 * runs is left in peace, how long a slice is at least and how soon a section is looked at again weigh what a switch
 * costs against what is gained: so they are multiples of that cost, and right on a server and in an emulator alike.
 */
#ifndef ENTRAIN_COST_H
#define ENTRAIN_COST_H

#include "policy.h"

/* A sample counts as at most so many times the mean so far: an interrupt that comes between is no cost of a switch. */
#define ENTRAIN_COST_OUTLIER 4

/* The mean of the costs measured, of which the last eight count most; 0: none so far. A sample of 0 is none. */
ENTRAIN_POLICY entrain_u64 entrain_cost(entrain_u64 mean, entrain_u64 sample)
{
	/* Whatever a clock says: a second is no cost of a switch, and keeps the sums small. */
	sample = entrain_min(sample, ENTRAIN_SEC);
	if (!mean || !sample)
		return entrain_max(mean, sample);
	sample = entrain_min(sample, mean * ENTRAIN_COST_OUTLIER);
	return entrain_max((mean * 7 + sample) / 8, 1);
}

/*
 * What something takes at least, where samples contain other work as well; 0: none so far. A sample of 0 is none. It
 * follows lower samples by a quarter of the way and higher ones by a 64th of itself: among samples that differ by much
 * it comes to the lowest tenth or so, and to what is taken now within a few hundred.
 */
ENTRAIN_POLICY entrain_u64 entrain_least(entrain_u64 least, entrain_u64 sample)
{
	sample = entrain_min(sample, ENTRAIN_SEC);
	least = entrain_min(least, ENTRAIN_SEC);
	if (!least || !sample)
		return entrain_max(least, sample);
	if (sample < least)
		return least - (least - sample) / 4;
	return least + entrain_min(sample - least, least / 64 + 1);
}

/* So many times the cost of a switch, at most `most`; that, too, where no cost is known. */
ENTRAIN_POLICY entrain_u64 entrain_costs(entrain_u64 mean, entrain_u64 times, entrain_u64 most)
{
	return mean ? entrain_min(entrain_min(mean, ENTRAIN_SEC) * entrain_min(times, 1000), most) : most;
}

#endif /* ENTRAIN_COST_H */
