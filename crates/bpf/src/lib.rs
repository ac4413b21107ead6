//! What every BPF program of Entrain needs: kernel declarations, object loading, the kernel's features.
