/* SPDX-License-Identifier: GPL-2.0-only */
/* The entitlement, exported under names of its own for crates/policy/src/entitle.rs. */
#include "entitle.h"

void entitle_n_clamp(struct entitle_vm *vm)
{
	entitle_clamp(vm);
}

int entitle_n_order(const struct entitle_vm *a, const struct entitle_vm *b)
{
	return entitle_order(a, b);
}

void entitle_n_prepare(struct entitle_vm *vms, uint32_t nr)
{
	entitle_prepare(vms, nr);
}

uint64_t entitle_n_share(const struct entitle_vm *vms, uint32_t nr, uint32_t self, uint64_t demand, uint64_t capacity)
{
	return entitle_share(vms, nr, self, demand, capacity);
}

uint64_t entitle_n_entitlement(const struct entitle_vm *vms, uint32_t nr, uint32_t self, uint64_t capacity)
{
	return entitle_entitlement(vms, nr, self, capacity);
}

uint64_t entitle_n_demand(uint64_t runnable, uint64_t period, uint32_t wants)
{
	return entitle_demand(runnable, period, wants);
}

int entitle_n_raise(struct entitle_floor *vms, uint32_t nr, uint64_t capacity)
{
	return entitle_raise(vms, nr, capacity);
}

uint64_t entitle_n_minima(uint64_t capacity)
{
	return entitle_minima(capacity);
}
