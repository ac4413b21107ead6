//! libbpf's messages go to the log.

use libbpf_rs::{PrintLevel, set_print};

/// Sends libbpf's messages to `tracing` (target `libbpf`) instead of stderr. What libbpf calls a warning is often the
/// detail behind an error that is returned and told anyway (the verifier's log), so it becomes `debug` here.
pub fn quiet() {
    set_print(Some((PrintLevel::Info, |level, text| {
        let text = text.trim_end();
        match level {
            PrintLevel::Warn => tracing::debug!(target: "libbpf", "{text}"),
            PrintLevel::Info | PrintLevel::Debug => tracing::trace!(target: "libbpf", "{text}"),
        }
    })));
}
