//! Recording in a guest: who ran on its CPUs, and how its clock stands to its host's.

mod capture;
mod tie;

pub(crate) use capture::capture;
pub(crate) use tie::{Stay, Tie};
