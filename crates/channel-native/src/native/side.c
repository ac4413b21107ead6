/* SPDX-License-Identifier: GPL-2.0-only */
/* entrain_host.h for Rust: as it is, and for the model check, whose accesses are functions of Rust. */
#include <stdint.h>

#ifdef ENTRAIN_MODEL
uint64_t entrain_model_load(const void *at);
void entrain_model_store(void *at, uint64_t value);
uint64_t entrain_model_exchange(void *at, uint64_t value);
uint64_t entrain_model_swap(void *at, uint64_t from, uint64_t to);
uint64_t entrain_model_own_load(const void *at);
void entrain_model_own_store(void *at, uint64_t value);

#define ENTRAIN_LOAD(at)	     ((__typeof__(*(at)))entrain_model_load(at))
#define ENTRAIN_STORE(at, value)     entrain_model_store(at, value)
#define ENTRAIN_EXCHANGE(at, value)  entrain_model_exchange(at, value)
#define ENTRAIN_SWAP(at, from, to)   ((__typeof__(*(at)))entrain_model_swap(at, from, to))
#define ENTRAIN_OWN_LOAD(at)	     entrain_model_own_load(at)
#define ENTRAIN_OWN_STORE(at, value) entrain_model_own_store(at, value)
#define NAME(name)		     entrain_model_##name
#else
#define NAME(name) entrain_native_##name
#endif

#include "entrain_host.h"

int NAME(step)(struct entrain_side *side, struct entrain_page *page, uint32_t op, uint64_t expected, uint64_t wanted,
	       uint64_t *was)
{
	return entrain_host_step(side, page, op, expected, wanted, was);
}

int NAME(is_closed)(const struct entrain_side *side)
{
	return entrain_host_is_closed(side);
}

uint64_t NAME(gone)(const struct entrain_side *side)
{
	return entrain_host_gone(side);
}

int NAME(stands)(struct entrain_side *side, const struct entrain_page *page, uint64_t *link)
{
	return entrain_host_stands(side, page, link);
}

void NAME(put_state)(struct entrain_side *side, struct entrain_page *page, const struct entrain_told *told)
{
	entrain_host_put_state(side, page, told);
}

void NAME(put_instant)(struct entrain_side *side, struct entrain_page *page, const uint32_t *instant,
		       const uint32_t *withheld, uint32_t *races)
{
	entrain_host_put_instant(side, page, instant, withheld, races);
}

void NAME(put_level)(struct entrain_side *side, struct entrain_page *page, const uint32_t *capacity,
		     const uint32_t *perf, const uint32_t *withheld, uint32_t *races)
{
	entrain_host_put_level(side, page, capacity, perf, withheld, races);
}

void NAME(put_beat)(struct entrain_side *side, struct entrain_page *page, const struct entrain_beat *beat)
{
	entrain_host_put_beat(side, page, beat);
}

#ifndef ENTRAIN_MODEL
/* What Rust mirrors. */
const uint64_t entrain_native_layout[] = {
	sizeof(struct entrain_side),
	__builtin_offsetof(struct entrain_side, closed),
	__builtin_offsetof(struct entrain_side, instant_busy),
	__builtin_offsetof(struct entrain_side, level_busy),
	__builtin_offsetof(struct entrain_side, fast),
	sizeof(struct entrain_told),
	__builtin_offsetof(struct entrain_told, state),
	sizeof(struct entrain_beat),
	__builtin_offsetof(struct entrain_beat, features),
	ENTRAIN_LINK_OP_PAIR,
	ENTRAIN_LINK_OP_CLOSE,
	ENTRAIN_LINK_OP_RELEASE,
	ENTRAIN_GONE(7, ENTRAIN_GONE_WORD),
	ENTRAIN_GONE(7, ENTRAIN_GONE_HEADER),
	ENTRAIN_GONE(7, ENTRAIN_GONE_LINK),
};
#endif
