//! entrain trial: an operator's own experiment on a host of his own, with and without Entrain's scheduler, or with two files
//! of classes.
//!
//! Two sides, A and B, take turns: each has its own daemon for one window of each round ([`daemon`]), and what is measured
//! is what the host knows ([`figures`]) and a number that a command of the operator's prints ([`command`]). A round is one
//! pair; the ratio of B to A has the lab's interval ([`report`]). Before anything is changed [`way_back`] looks whether the
//! host can be left as it was; an alarm ([`alarm`]), a signal or an error ends the trial and the side's daemon at once.

mod alarm;
pub mod cli;
mod command;
mod daemon;
mod figures;
mod matrix;
mod report;
mod rounds;
mod way_back;
