/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entitlement: how much CPU time each VM of a host can have now.
 *
 * The rule is weighted max-min fairness (progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2): the level
 * rises for all VMs in proportion to their weights, a VM drops out when its demand is met, what it leaves raises the
 * level of the others. A VM's *share* is what it gets for its present demand. Its *entitlement* is what it would get if
 * it wanted all its vCPUs while the others want what they want now: that is what it may grow to, and it is what the
 * guest is told. (Told its share, a guest that had shrunk would find its small demand confirmed for ever.)
 *
 * Host side only; the VMs stand in an array in the order of demand/weight, so that each answer is a binary search.
 * Unit: 1/1024 pCPU.
 */
#ifndef ENTRAIN_ENTITLE_H
#define ENTRAIN_ENTITLE_H

#include "entrain.h"
#include "policy.h"

#define ENTITLE_WEIGHT_MAX 10000ULL
/* Of one VM, or of a group of VMs: as many pCPUs as a host has vCPUs. Keeps every product below 2^63 for 2^20 of them.
 */
#define ENTITLE_DEMAND_MAX (4096 * 1024ULL)

struct entitle_vm {
	entrain_u64 weight;  /* cgroup v2 weight, 1..10000; clamped */
	entrain_u64 demand;  /* what it would use now; clamped to the ceiling */
	entrain_u64 ceiling; /* its vCPUs, or its cpu.max when that is less; clamped to ENTITLE_DEMAND_MAX */
	/* Written by entitle_prepare. */
	entrain_u64 demand_before; /* of the VMs before it */
	entrain_u64 weight_from;   /* of this one and the VMs after it */
};

ENTRAIN_POLICY void entitle_clamp(struct entitle_vm *vm)
{
	if (vm->weight < 1)
		vm->weight = 1;
	if (vm->weight > ENTITLE_WEIGHT_MAX)
		vm->weight = ENTITLE_WEIGHT_MAX;
	if (vm->ceiling > ENTITLE_DEMAND_MAX)
		vm->ceiling = ENTITLE_DEMAND_MAX;
	if (vm->demand > vm->ceiling)
		vm->demand = vm->ceiling;
}

/* The order of the array: negative, 0 or positive as `a` is satisfied before, with or after `b`. Clamped VMs. */
ENTRAIN_POLICY int entitle_order(const struct entitle_vm *a, const struct entitle_vm *b)
{
	entrain_u64 left = a->demand * b->weight, right = b->demand * a->weight;

	return left < right ? -1 : left > right;
}

/* Fills in the sums over a sorted array of clamped VMs. */
ENTRAIN_POLICY void entitle_prepare(struct entitle_vm *vms, entrain_u32 nr)
{
	entrain_u64 demand = 0, weight = 0;
	entrain_u32 i;

	for (i = 0; i < nr; i++) {
		vms[i].demand_before = demand;
		demand += vms[i].demand;
	}
	for (i = nr; i > 0; i--) {
		weight += vms[i - 1].weight;
		vms[i - 1].weight_from = weight;
	}
}

/*
 * What vms[self] gets of `capacity` when it wants `demand`, and all others what they want. The array is sorted and
 * prepared. Result: 0..min(demand, capacity).
 */
ENTRAIN_POLICY entrain_u64 entitle_share(const struct entitle_vm *vms, entrain_u32 nr, entrain_u32 self,
					 entrain_u64 demand, entrain_u64 capacity)
{
	const struct entitle_vm *me = &vms[self];
	entrain_u32 low = 0, high = nr;
	entrain_u64 before, weight, share;

	/* The first k such that the other VM at or after k is not satisfied when exactly those before k are. */
	while (low < high) {
		entrain_u32 k = low + (high - low) / 2, other = k == self ? k + 1 : k;

		if (other >= nr) {
			high = k;
			continue;
		}
		before = vms[k].demand_before - (self < k ? me->demand : 0);
		weight = vms[k].weight_from + (self < k ? me->weight : 0);
		if (before >= capacity || vms[other].demand * weight >= (capacity - before) * vms[other].weight)
			high = k;
		else
			low = k + 1;
	}
	if (high < nr) {
		before = vms[high].demand_before - (self < high ? me->demand : 0);
		weight = vms[high].weight_from + (self < high ? me->weight : 0);
	} else {
		before = nr ? vms[nr - 1].demand_before + vms[nr - 1].demand - me->demand : 0;
		weight = me->weight;
	}
	share = before < capacity ? (capacity - before) * me->weight / weight : 0;
	return share < demand ? share : demand;
}

/* What the guest is told: see above. */
ENTRAIN_POLICY entrain_u64 entitle_entitlement(const struct entitle_vm *vms, entrain_u32 nr, entrain_u32 self,
					       entrain_u64 capacity)
{
	return entitle_share(vms, nr, self, vms[self].ceiling, capacity);
}

/*
 * A VM's demand in a period. `runnable` is the time that its vCPUs ran or waited for a pCPU in it, ns; `wants` is what
 * a cooperating guest says that it could use now, in vCPUs, 0 for others: a parked guest has less runnable vCPUs than
 * it could use. There is no memory of earlier periods: a neighbour is to grow within 10 ms, and the guests have
 * hysteresis.
 */
ENTRAIN_POLICY entrain_u64 entitle_demand(entrain_u64 runnable, entrain_u64 period, entrain_u32 wants)
{
	entrain_u64 demand = 0;

	if (period && runnable < (1ULL << 50))
		demand = runnable * 1024 / period;
	demand = entrain_max(demand, (entrain_u64)wants * 1024);
	return entrain_min(demand, ENTITLE_DEMAND_MAX);
}

/* A VM with a minimum: weights are what both of the host's schedulers go by, so a minimum is held by its weight. */
struct entitle_floor {
	entrain_u64 weight;  /* cgroup v2 weight, 1..10000; clamped, and raised where the minimum asks for it */
	entrain_u64 minimum; /* 1/1024 pCPU; 0 = none; lowered where all minima together are too much */
	entrain_u64 raised;  /* written here */
};

/* Most that all minima together may be: a VM without one must still be able to run. */
ENTRAIN_POLICY entrain_u64 entitle_minima(entrain_u64 capacity)
{
	return capacity * 9 / 10;
}

/*
 * Raises the weights of VMs whose part by weight of `capacity` would be less than their minimum, with all VMs wanting
 * all they can get, as little as is needed; the others' weights stay. Returns whether all minima fit; where they do
 * not, all are lowered by the same factor. A weight cannot exceed ENTITLE_WEIGHT_MAX, and a minimum that would need
 * more is not reached. O(n^2) when each minimum pushes the next one below its own.
 */
ENTRAIN_POLICY int entitle_raise(struct entitle_floor *vms, entrain_u32 nr, entrain_u64 capacity)
{
	entrain_u64 most = entitle_minima(capacity), minima = 0, weight = 0, left = capacity;
	int fits, again = 1;
	entrain_u32 i;

	for (i = 0; i < nr; i++) {
		vms[i].weight = entrain_min(entrain_max(vms[i].weight, 1), ENTITLE_WEIGHT_MAX);
		vms[i].minimum = entrain_min(vms[i].minimum, ENTITLE_DEMAND_MAX);
		vms[i].raised = 0;
		weight += vms[i].weight;
		minima += vms[i].minimum;
	}
	fits = minima <= most;
	for (i = 0; !fits && i < nr; i++)
		vms[i].minimum = vms[i].minimum * most / minima;
	/* What is left for the others shrinks with each that is raised, so others may fall below theirs. */
	while (again) {
		again = 0;
		for (i = 0; i < nr; i++) {
			if (vms[i].raised || vms[i].minimum * weight <= vms[i].weight * left)
				continue;
			vms[i].raised = 1;
			weight -= vms[i].weight;
			left -= vms[i].minimum;
			again = 1;
		}
	}
	/* One at least is not raised: the minima are less than the capacity. So neither `weight` nor `left` is 0. */
	for (i = 0; i < nr; i++) {
		if (vms[i].raised)
			vms[i].weight = entrain_min((vms[i].minimum * weight + left - 1) / left, ENTITLE_WEIGHT_MAX);
	}
	return fits;
}

#endif /* ENTRAIN_ENTITLE_H */
