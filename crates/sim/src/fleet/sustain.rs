//! Which ratio of vCPUs to pCPUs an arm sustains.

use comfy_table::{CellAlignment, Table, presets};

use super::Row;

/// An arm is said to sustain a ratio at which this part of the hosts meets the target, and at all lower ratios.
pub const HOSTS: f64 = 0.95;

/// One arm at one ratio.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Cell {
    /// The sweep.
    pub sweep: String,
    /// The arm.
    pub arm: String,
    /// vCPUs for each pCPU.
    pub ratio: f64,
    /// Hosts.
    pub hosts: usize,
    /// Part of them on which the 99th percentile of the requests' waits is within the target.
    pub met: f64,
    /// That percentile, ms: of the median host, and of the host that is worse than 95 of 100.
    pub p99_ms: [f64; 2],
    /// Mean of what the hosts' CPUs were busy with VMs.
    pub busy: f64,
    /// The same of what the VMs want.
    pub wanted: f64,
}

/// What rows come to at a target, ms, by sweep, arm and ratio.
pub fn cells(rows: &[Row], target_ms: f64) -> Vec<Cell> {
    let mut groups: std::collections::BTreeMap<(&str, &str, u64), Vec<&Row>> = Default::default();
    for row in rows {
        groups.entry((&row.sweep, &row.arm, row.ratio.to_bits())).or_default().push(row);
    }
    let cell = |((sweep, arm, ratio), rows): ((&str, &str, u64), Vec<&Row>)| {
        let mut p99: Vec<f64> = rows.iter().map(|row| row.wait_us[1] / 1e3).collect();
        p99.sort_by(f64::total_cmp);
        let count = rows.len() as f64;
        let mean = |of: fn(&Row) -> f64| rows.iter().map(|row| of(row)).sum::<f64>() / count;
        Cell {
            sweep: sweep.to_owned(),
            arm: arm.to_owned(),
            ratio: f64::from_bits(ratio),
            hosts: rows.len(),
            met: p99.iter().filter(|p99| **p99 <= target_ms).count() as f64 / count,
            p99_ms: [0.5, HOSTS].map(|part| p99[((count - 1.0) * part) as usize]),
            busy: mean(|row| row.busy),
            wanted: mean(|row| row.wanted),
        }
    };
    groups.into_iter().map(cell).collect()
}

/// The highest ratio that an arm sustains of those that were tried; `None`: not the lowest.
pub fn sustained(cells: &[Cell], sweep: &str, arm: &str) -> Option<f64> {
    let mine = cells.iter().filter(|cell| cell.sweep == sweep && cell.arm == arm);
    mine.take_while(|cell| cell.met >= HOSTS).last().map(|cell| cell.ratio)
}

/// The arms' names in the order in which they are always told.
fn arms(cells: &[Cell], sweep: &str) -> Vec<String> {
    let mut arms: Vec<String> = crate::scenario::Arm::NAMES.iter().map(|arm| (*arm).to_owned()).collect();
    arms.retain(|arm| cells.iter().any(|cell| cell.sweep == sweep && cell.arm == *arm));
    arms
}

/// All of it for the terminal.
pub fn text(cells: &[Cell], target_ms: f64) -> String {
    let mut sweeps: Vec<&str> = cells.iter().map(|cell| cell.sweep.as_str()).collect();
    sweeps.dedup();
    let mut text = String::new();
    for sweep in sweeps {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["arm", "vCPUs/pCPU", "hosts", "wanted", "busy", "p99 of a host, ms", "of 95 in 100", "met"]);
        for arm in arms(cells, sweep) {
            for cell in cells.iter().filter(|cell| cell.sweep == sweep && cell.arm == arm) {
                let percent = |part: f64| format!("{:.0} %", part * 100.0);
                table.add_row([
                    arm.clone(),
                    format!("{:.2}", cell.ratio),
                    cell.hosts.to_string(),
                    percent(cell.wanted),
                    percent(cell.busy),
                    format!("{:.3}", cell.p99_ms[0]),
                    format!("{:.3}", cell.p99_ms[1]),
                    percent(cell.met),
                ]);
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text += &format!("{sweep}\n{table}\n");
        for arm in arms(cells, sweep) {
            let ratio = sustained(cells, sweep, &arm);
            let ratio =
                ratio.map_or("none of these ratios".to_owned(), |ratio| format!("{ratio:.2} vCPUs for each pCPU"));
            text += &format!(
                "{arm:<6} sustains {ratio}: 99 of 100 requests wait {target_ms} ms at most on {:.0} of 100 hosts\n",
                HOSTS * 100.0
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(host: u32, arm: &str, ratio: f64, p99_us: f64) -> Row {
        Row {
            sweep: "s".into(),
            host,
            arm: arm.into(),
            ratio,
            pcpus: 4,
            vcpus: 8,
            wanted: 0.5,
            busy: 0.4,
            requests: 100.0,
            wait_us: [1.0, p99_us, 0.0, 0.0],
            stolen: 0.1,
            events: 1,
            trace: String::new(),
        }
    }

    #[test]
    fn a_ratio_is_sustained_when_it_and_all_lower_ones_meet_the_target() {
        let mut rows = Vec::new();
        for host in 0..20 {
            rows.push(row(host, "stock", 1.0, 500.0));
            // One host of twenty is over: 95 of 100 meet it still.
            rows.push(row(host, "stock", 2.0, if host == 3 { 9_000.0 } else { 900.0 }));
            rows.push(row(host, "stock", 3.0, if host < 2 { 9_000.0 } else { 900.0 }));
            rows.push(row(host, "stock", 4.0, 10.0));
            rows.push(row(host, "both", 1.0, 2_000.0));
        }
        let cells = cells(&rows, 1.0);
        assert_eq!(
            cells.iter().filter(|cell| cell.arm == "stock").map(|cell| cell.ratio).collect::<Vec<_>>(),
            [1.0, 2.0, 3.0, 4.0]
        );
        assert_eq!((sustained(&cells, "s", "stock"), sustained(&cells, "s", "both")), (Some(2.0), None));
        let text = text(&cells, 1.0);
        assert!(text.contains("stock  sustains 2.00") && text.contains("both   sustains none"), "{text}");
    }
}
