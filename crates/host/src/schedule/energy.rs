//! The kernel's energy model: what a unit of work costs at each operating point of a CPU. It tells it in debugfs alone,
//! where `CONFIG_ENERGY_MODEL` is set and a driver has registered one; elsewhere placement goes without.

use entrain_policy::energy::{COST_MAX, Model, Point};
use entrain_system::{CpuSet, Root};
use tracing::warn;

use crate::skeleton::sched::types::{entrain_energy_model, entrain_energy_point, rodata};

/// Where the kernel puts it: a folder for each frequency domain, one in it for each operating point.
const FOLDER: &str = "sys/kernel/debug/energy_model";
/// Frequency domains that the scheduler tells apart (`ENERGY_DOMAINS`).
const DOMAINS: usize = 8;

/// One frequency domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Domain {
    cpus: CpuSet,
    model: Model,
}

/// An operating point as the kernel tells it: kHz, and power in whatever unit the driver has.
struct Told {
    khz: u64,
    power: u64,
}

/// The energy model of a computer whose CPUs have these capacities (0 = not there). Empty where there is none, or one that
/// does not know every CPU: what costs nothing for want of a figure would attract everybody.
pub(super) fn read(root: &Root, capacities: &[u32]) -> Vec<Domain> {
    let told: Vec<(CpuSet, Vec<Told>)> =
        root.list(FOLDER).into_iter().filter_map(|name| domain(root, &format!("{FOLDER}/{name}"))).collect();
    let known = |cpu| told.iter().any(|(cpus, _)| cpus.contains(cpu));
    let all = (0..capacities.len()).all(|cpu| capacities[cpu] == 0 || known(cpu as u32));
    if told.is_empty() || !all {
        return Vec::new();
    }
    if told.len() > DOMAINS {
        warn!("the energy model has {} frequency domains, more than {DOMAINS}: placement goes without it", told.len());
        return Vec::new();
    }
    let per_work: Vec<Vec<(u32, f64)>> = told.iter().map(|(cpus, points)| costs(cpus, points, capacities)).collect();
    let dearest = per_work.iter().flatten().map(|(_, cost)| *cost).fold(0.0, f64::max);
    if dearest <= 0.0 {
        return Vec::new();
    }
    let scaled = |(performance, cost): &(u32, f64)| Point {
        performance: *performance,
        cost: (cost / dearest * f64::from(COST_MAX)).round() as u32,
    };
    let model = |points: &Vec<(u32, f64)>| Model::new(&points.iter().map(scaled).collect::<Vec<_>>());
    told.into_iter().zip(&per_work).map(|((cpus, _), points)| Domain { cpus, model: model(points) }).collect()
}

fn domain(root: &Root, folder: &str) -> Option<(CpuSet, Vec<Told>)> {
    let cpus = root.cpus_or_none(format!("{folder}/cpus"));
    let point = |name: String| {
        let of = |what: &str| root.parse(format!("{folder}/{name}/{what}"));
        name.starts_with("ps:").then_some(())?;
        Some(Told { khz: of("frequency")?, power: of("power")? })
    };
    let mut points: Vec<Told> = root.list(folder).into_iter().filter_map(point).collect();
    points.sort_by_key(|point| point.khz);
    (!cpus.is_empty() && points.last()?.khz > 0).then_some((cpus, points))
}

/// Performance at each point, and power for it.
fn costs(cpus: &CpuSet, points: &[Told], capacities: &[u32]) -> Vec<(u32, f64)> {
    let capacity = cpus.iter().filter_map(|cpu| capacities.get(cpu as usize)).copied().max().unwrap_or(0);
    let most = points.last().map_or(1, |point| point.khz);
    let at = |point: &Told| {
        let performance = f64::from(capacity) * point.khz as f64 / most as f64;
        (performance.round() as u32, point.power as f64 / performance.max(1.0))
    };
    points.iter().map(at).collect()
}

/// Before the programs are loaded.
pub(super) fn describe(domains: &[Domain], data: &mut rodata) {
    for (index, domain) in domains.iter().enumerate() {
        let mut model = entrain_energy_model { nr: domain.model.nr, ..Default::default() };
        for (to, from) in model.at.iter_mut().zip(&domain.model.at) {
            *to = entrain_energy_point { performance: from.performance, cost: from.cost };
        }
        data.energy_models[index] = model;
        for cpu in domain.cpus.iter() {
            if let Some(of) = data.energy_domain_of.get_mut(cpu as usize) {
                *of = 1 + index as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    /// Two of the clusters of a Google Tensor GS101: kHz and mW of some points (Linux 7.3, gs101.dtsi).
    fn phone() -> Machine {
        let machine = Machine::default();
        let put = |domain: &str, cpus: &str, points: &[(u64, u64)]| {
            machine.put(&format!("{FOLDER}/{domain}/cpus"), cpus);
            machine.put(&format!("{FOLDER}/{domain}/flags"), "0x1\n");
            for (khz, power) in points {
                machine.put(&format!("{FOLDER}/{domain}/ps:{khz}/frequency"), format!("{khz}\n"));
                machine.put(&format!("{FOLDER}/{domain}/ps:{khz}/power"), format!("{power}\n"));
            }
        };
        put("cpu0", "0-1\n", &[(910_000, 95), (2_253_000, 601)]);
        put("cpu2", "2\n", &[(2_802_000, 2031), (500_000, 81), (1_106_000, 264)]);
        machine
    }

    #[test]
    fn a_unit_of_work_costs_power_by_performance() {
        let domains = read(&phone().root(), &[499, 499, 1024]);
        assert_eq!(domains.len(), 2);
        let big = domains.iter().find(|domain| domain.cpus.contains(2)).unwrap();
        let points = &big.model.at[..big.model.nr as usize];
        assert_eq!(points.iter().map(|point| point.performance).collect::<Vec<_>>(), [183, 404, 1024]);
        // The fastest point of the big one is the dearest of all, by a little.
        assert_eq!(points[2].cost, COST_MAX);
        let middle = domains.iter().find(|domain| domain.cpus.contains(1)).unwrap();
        assert!(middle.model.at[1].cost > points[1].cost, "{:?} {points:?}", middle.model.at[1]);
    }

    #[test]
    fn a_model_that_does_not_know_each_cpu_is_none() {
        let machine = phone();
        let root = machine.root();
        assert!(read(&root, &[499, 499, 1024, 1024]).is_empty());
        assert_eq!(read(&root, &[499, 499, 1024, 0]).len(), 2);
        assert!(read(&Machine::default().root(), &[499, 1024]).is_empty());
    }
}
