//! Entrain's scheduling decisions as pure functions, in C headers shared by BPF and native code.
