/* SPDX-License-Identifier: GPL-2.0-only */
/* Stands in for libbpf's header of that name: programs take their arguments as the C that they are written in says. */
#ifndef ENTRAIN_SIM_BPF_TRACING_H
#define ENTRAIN_SIM_BPF_TRACING_H

#define BPF_PROG(name, args...) name(args)

#endif /* ENTRAIN_SIM_BPF_TRACING_H */
