//! How much work the verifier has with each program, against a stored baseline: growth shall be seen when it happens.
//!
//! The experiment `smoke` compares it in its host machine, where BPF can be loaded whatever computer the lab runs on;
//! `make complexity` renews the baseline there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::program_info;

/// By architecture, since what the kernel's types resolve to decides which branches are left to verify.
const BASELINE: &str = include_str!("../complexity.json");

/// Instructions that the verifier went through for one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complexity {
    /// The program.
    pub program: String,
    /// Instructions processed.
    pub instructions: u32,
}

/// How many instructions the verifier processed for each loaded program of an object.
pub(crate) fn of(object: &libbpf_rs::Object) -> Vec<Complexity> {
    let one = |(program, info): (String, libbpf_sys::bpf_prog_info)| Complexity {
        program,
        instructions: info.verified_insns,
    };
    program_info::infos(object).map(one).collect()
}

/// What may be added to a program without a new baseline: a fifth, and the same again of a small one.
fn allowed(baseline: u32) -> u32 {
    (baseline + baseline / 5).max(baseline + 50)
}

/// One line for each program that grew beyond what is allowed, is new, or is gone.
pub fn compare(now: &[Complexity], baseline: &[Complexity]) -> Vec<String> {
    let find =
        |list: &[Complexity], name: &str| list.iter().find(|entry| entry.program == name).map(|e| e.instructions);
    let mut lines = Vec::new();
    for entry in now {
        match find(baseline, &entry.program) {
            None => lines
                .push(format!("{}: new, {} instructions: add it to the baseline", entry.program, entry.instructions)),
            Some(was) if entry.instructions > allowed(was) => lines.push(format!(
                "{}: {} instructions, {was} before: make it simpler, or raise the baseline and say why",
                entry.program, entry.instructions
            )),
            Some(_) => {}
        }
    }
    for entry in baseline {
        if find(now, &entry.program).is_none() {
            lines.push(format!("{}: gone: take it off the baseline", entry.program));
        }
    }
    lines
}

type Baseline = BTreeMap<String, Vec<Complexity>>;

/// Compares with the stored baseline: lines as the lab reads them of a load, a note for each program that grew, and the
/// number of them as a figure.
pub fn report(now: &[Complexity]) -> Result<String, serde_json::Error> {
    let baseline: Baseline = serde_json::from_str(BASELINE)?;
    let mut notes = match baseline.get(std::env::consts::ARCH) {
        Some(baseline) => compare(now, baseline),
        None => Vec::new(),
    };
    let grown = notes.len();
    if !baseline.contains_key(std::env::consts::ARCH) {
        notes.push(format!("no baseline for {}: nothing was compared", std::env::consts::ARCH));
    }
    let notes = notes.iter().map(|text| serde_json::json!({ "event": "note", "text": text }).to_string());
    let figure = serde_json::json!({ "metric": "grown", "value": grown, "unit": "1" }).to_string();
    Ok(notes.chain([figure]).map(|line| line + "\n").collect())
}

/// The stored baseline with this machine's architecture replaced, as a file.
pub fn renewed(now: Vec<Complexity>) -> Result<String, serde_json::Error> {
    let mut baseline: Baseline = serde_json::from_str(BASELINE)?;
    baseline.insert(std::env::consts::ARCH.to_owned(), now);
    Ok(serde_json::to_string_pretty(&baseline)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(program: &str, instructions: u32) -> Complexity {
        Complexity { program: program.to_owned(), instructions }
    }

    #[test]
    fn growth_new_and_lost_programs_are_told() {
        let baseline = [entry("a", 1000), entry("b", 10), entry("c", 100)];
        assert!(compare(&[entry("a", 1200), entry("b", 60), entry("c", 1)], &baseline).is_empty());
        let told = compare(&[entry("a", 1201), entry("b", 10), entry("d", 5)], &baseline);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].starts_with("a: 1201") && told[1].starts_with("d: new") && told[2].starts_with("c: gone"));
    }

    #[test]
    fn the_stored_baseline_can_be_read_compared_and_renewed() {
        let baseline: Baseline = serde_json::from_str(BASELINE).expect("valid JSON");
        let programs = &baseline[std::env::consts::ARCH];
        assert!(programs.iter().any(|entry| entry.program == "host_dispatch" && entry.instructions > 0));
        let told = report(programs).expect("JSON");
        let last = told.lines().last().expect("a figure");
        assert_eq!(last, r#"{"metric":"grown","unit":"1","value":0}"#);
        let again: Baseline = serde_json::from_str(&renewed(vec![entry("a", 1)]).expect("JSON")).expect("JSON");
        assert_eq!(again[std::env::consts::ARCH], [entry("a", 1)]);
    }
}
