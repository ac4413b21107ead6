//! The skeletons that the build script makes of the BPF programs.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]

pub(crate) mod discover {
    include!(concat!(env!("OUT_DIR"), "/discover.skel.rs"));
}

pub(crate) mod sched {
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}

pub(crate) mod observe {
    include!(concat!(env!("OUT_DIR"), "/observe.skel.rs"));
}

pub(crate) mod watch {
    include!(concat!(env!("OUT_DIR"), "/watch.skel.rs"));
}
