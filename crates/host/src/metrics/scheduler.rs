//! The counters of the host's scheduler as metrics: of the host, of each VM and of each vCPU, as the table of
//! [`crate::counters`] says.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::registry::{Registry, Unit as MetricUnit};

use super::text::{Labels, counter, counters, seconds};
use crate::counters::{COUNTERS, Counter, Of, ScheduleStatus, Unit};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Counters of one metric: one, or several with a reason each.
type Family = Vec<&'static Counter>;

fn families(of: Of) -> Vec<Family> {
    let told: Family = COUNTERS.iter().filter(|counter| counter.of.contains(&of)).collect();
    told.chunk_by(|a, b| a.metric == b.metric).map(<[_]>::to_vec).collect()
}

fn unit(counter: &Counter) -> Option<MetricUnit> {
    match counter.unit {
        Unit::Times => None,
        Unit::Ns => Some(MetricUnit::Seconds),
    }
}

fn value(counter: &Counter, figures: &ScheduleStatus) -> f64 {
    let value = (counter.value)(figures);
    match counter.unit {
        Unit::Times => value as f64,
        Unit::Ns => seconds(value),
    }
}

/// Of the whole host.
pub(super) fn host(registry: &mut Registry, figures: &ScheduleStatus) {
    for family in families(Of::Host) {
        let first = family[0];
        if first.reason.is_none() {
            counter(registry, first.metric, first.help, unit(first), value(first, figures));
            continue;
        }
        let values = family.iter().filter_map(|one| Some((Reason { reason: one.reason? }, value(one, figures))));
        counters(registry, first.metric, first.help, unit(first), values);
    }
}

/// Of each VM, or of each vCPU.
pub(super) fn each<'a, L: Labels, I: Iterator<Item = (L, &'a ScheduleStatus)>>(
    registry: &mut Registry,
    of: Of,
    all: impl Fn() -> I,
) {
    let prefix = if of == Of::Vm { "vm" } else { "vcpu" };
    for family in families(of) {
        let first = family[0];
        let name = format!("{prefix}_{}", first.metric);
        if first.reason.is_none() {
            let values = all().map(|(labels, figures)| (labels, value(first, figures)));
            counters(registry, &name, first.help, unit(first), values);
            continue;
        }
        let values = all().flat_map(|(labels, figures)| {
            let with =
                move |one: &&Counter| Some(((labels.clone(), Reason { reason: one.reason? }), value(one, figures)));
            family.iter().filter_map(with).collect::<Vec<_>>()
        });
        counters(registry, &name, first.help, unit(first), values);
    }
}
