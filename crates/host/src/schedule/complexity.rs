//! How much work the verifier has with each program, against a stored baseline: growth shall be seen when it happens.

use serde::{Deserialize, Serialize};

/// Instructions that the verifier went through for one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complexity {
    /// The program.
    pub program: String,
    /// Instructions processed.
    pub instructions: u32,
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
    fn the_stored_baseline_can_be_read() {
        let text = include_str!("../../complexity.json");
        let baseline: Vec<Complexity> = serde_json::from_str(text).expect("valid JSON");
        assert!(baseline.iter().any(|entry| entry.program == "host_dispatch" && entry.instructions > 0));
    }
}
