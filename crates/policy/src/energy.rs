//! On which CPU a task's work costs least: native bindings of `energy.h`.

/// Operating points that a model holds at most (`ENTRAIN_ENERGY_POINTS`).
pub const POINTS: usize = 32;

/// The greatest cost (`ENTRAIN_ENERGY_COST_MAX`).
pub const COST_MAX: u32 = 1 << 20;

/// An operating point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Point {
    /// 0..=1024 of the biggest CPU at its highest frequency.
    pub performance: u32,
    /// Of a unit of work, 0..=[`COST_MAX`], relative to the others of the computer.
    pub cost: u32,
}

/// A frequency domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Model {
    /// How many points it has.
    pub nr: u32,
    pad: u32,
    /// From slow to fast.
    pub at: [Point; POINTS],
}

impl Model {
    /// One of these points, from slow to fast; of more than [`POINTS`] every second is left out, from the slowest on, until
    /// they fit. The fastest stays.
    pub fn new(points: &[Point]) -> Self {
        let mut points = points.to_vec();
        while points.len() > POINTS {
            points = points.into_iter().rev().step_by(2).collect();
            points.reverse();
        }
        let mut model = Self { nr: points.len() as u32, ..Self::default() };
        model.at[..points.len()].copy_from_slice(&points);
        model
    }
}

/// What is asked of a domain.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct EnergyIn {
    /// Demands of the tasks that run there, summed up.
    pub others: u64,
    /// The highest level that one of them wants, 0..=1024.
    pub level: u32,
    /// Demand of the task that is to come, 0..=1024.
    pub demand: u32,
}

mod ffi {
    use super::{EnergyIn, Model};
    unsafe extern "C" {
        pub(super) safe fn energy_n_more(model: &Model, input: &EnergyIn) -> u64;
    }
}

/// What a domain costs more with the task than without it; see `entrain_energy_more`.
pub fn more(model: &Model, input: &EnergyIn) -> u64 {
    ffi::energy_n_more(model, input)
}
