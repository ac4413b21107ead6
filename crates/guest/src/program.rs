//! BPF programs that the agent calls: type `syscall`, with a context that the skeleton declares.

use bytemuck::Pod;
use libbpf_rs::{ProgramInput, ProgramMut};

use crate::error::{GuestError, Result};

/// Runs a program with its context, and returns the context as the program left it.
pub(crate) fn run<T: Pod>(program: &ProgramMut<'_>, mut context: T) -> Result<T> {
    let input = ProgramInput { context_in: Some(bytemuck::bytes_of_mut(&mut context)), ..ProgramInput::default() };
    program.test_run(input).map_err(GuestError::bpf("a BPF program could not be run"))?;
    Ok(context)
}
