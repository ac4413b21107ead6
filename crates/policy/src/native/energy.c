/* SPDX-License-Identifier: GPL-2.0-only */
/* Placement by energy, exported under names of their own for crates/policy/src/energy.rs. */
#include "energy.h"

uint64_t energy_n_more(const struct entrain_energy_model *model, const struct entrain_energy_in *in)
{
	return entrain_energy_more(model, in);
}
