/*
 * scx_simple in its own words, beside a scheduler of ours in one program: names that both have are told apart. Its
 * option is `const` for BPF's loader, which sets it; the simulator's is a variable like any other.
 */
#define _license simple_license
#define stats	 simple_stats
#define const
#include "scx_simple.c"
#undef const
#undef stats
#undef _license
