//! A neighbour that comes and goes: how fast the first guest gives vCPUs up and takes them again, and what it gets done.
//!
//! `params`: `loads`, one command for each of two guests; the second's works and rests in turns and tells its progress.
//! `also`, further commands in the first guest; `figures` as in `watched`; `alone`, seconds for which the first runs alone
//! at the start, which is what its later throughput is compared with; `trace`, whether the host's switches are recorded,
//! from which the times of growing and shrinking come. pCPUs are the host machine's, and a guest that has them alone is to
//! use them all, one that shares them with its equal half of them.

use std::time::Duration;

use entrain_lab_machine::machine::Target;
use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;
use serde_json::Value;

use super::beside::{self, Wanted};
use super::interface::{Context, Scenario};
use super::product::{shell, unmet};
use super::trace::{self, Recording, Run};
use crate::load::Printed;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Steps;

/// Width of the windows in which the record is judged, s.
const WINDOW: f64 = 0.01;
/// Windows before and after a step that must differ, and by how many.
const REACH: usize = 30;
const CLEAR: i32 = 20;
/// Longest time that a guest is waited for after a step, s.
const LATEST: f64 = 0.5;
/// After a step the throughput counts from here on, s: what comes before is the time of growing, reported by itself.
const SETTLED: f64 = 0.3;
/// The neighbour rests while it does less than this share of its most.
const RESTING: f64 = 0.05;
/// No stretch is longer, s: a step of the neighbour, and some.
const LONGEST: f64 = 10.0;
/// A stretch shorter than this is housekeeping of an idle guest, s.
const BLIP: f64 = 0.000_3;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    loads: [Vec<String>; 2],
    #[serde(default)]
    also: Vec<Vec<String>>,
    #[serde(default)]
    figures: Vec<Wanted>,
    alone: f64,
    #[serde(default)]
    trace: bool,
}

impl Scenario for Steps {
    fn name(&self) -> &'static str {
        "steps"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let wrong = |what: String| LabError::Invalid(format!("steps: {what}"));
        let params: Params = context.params("steps")?;
        let [first, second] = context.guests[..] else { return Err(wrong("needs two guests".into())) };
        let pcpus: usize = shell(rig, Target::Host, "nproc")?.parse().map_err(|_| unmet("nproc told no number"))?;
        let threads = trace::threads(rig)?;
        let [a, b] = &threads[..] else { return Err(unmet(format!("two guests are to run, {} do", threads.len()))) };
        let tids: Vec<u32> = a.tids.iter().chain(&b.tids).copied().collect();
        let recording = params.trace.then(|| Recording::prepare(rig, &tids, None)).transpose()?;
        let parked = parks(rig, first)?;

        let begun = rig.now();
        let life = params.alone + context.seconds;
        let mut running = Vec::new();
        running.extend(beside::start(rig, Target::Guest(first), &params.loads[0], life)?);
        for argv in &params.also {
            running.extend(beside::start(rig, Target::Guest(first), argv, life)?);
        }
        rig.sleep(Duration::from_secs_f64(params.alone).saturating_sub(rig.now() - begun))?;
        if let Some(recording) = &recording {
            recording.begin()?;
        }
        let offset = (rig.now() - begun).as_secs_f64();
        let neighbour = beside::start(rig, Target::Guest(second), &params.loads[1], context.seconds)?
            .ok_or_else(|| wrong("the second guest needs a load".into()))?;
        let neighbour = neighbour.printed()?.1;
        let printed = beside::finish(running)?;

        beside::figures(&params.figures, &context.guests, &printed, readings)?;
        if let Some((_, own)) = printed.first().filter(|(_, own)| !own.progress.is_empty()) {
            throughput(own, &neighbour, offset, readings)?;
        }
        if let (Some(before), Some(after)) = (parked, parks(rig, first)?) {
            readings.push("parks", "1", Higher, after.0 - before.0);
            readings.push("unparks", "1", Higher, after.1 - before.1);
        }
        if let Some(recording) = recording {
            let text = recording.end()?;
            times(&trace::runs(&text, &a.tids), &trace::runs(&text, &b.tids), pcpus, readings)?;
        }
        Ok(())
    }
}

/// vCPUs parked and unparked until now by the guest's scheduler; `None` where none runs.
fn parks(rig: &dyn Rig, guest: usize) -> Result<Option<(f64, f64)>> {
    let text = shell(rig, Target::Guest(guest), "cat /run/entrain/schedule.json 2>/dev/null || true")?;
    let Ok(stats) = serde_json::from_str::<Value>(&text) else { return Ok(None) };
    Ok(stats["parks"].as_f64().zip(stats["unparks"].as_f64()))
}

/// What the first guest got done alone at the start, beside its neighbour, and in the neighbour's rests.
fn throughput(own: &Printed, neighbour: &Printed, offset: f64, readings: &mut Readings) -> Result<()> {
    let most = neighbour.progress.iter().map(|one| one.value).fold(0.0, f64::max);
    let (mut alone, mut shared, mut regained) = (Vec::new(), Vec::new(), Vec::new());
    let mut since = 0.0;
    for one in &own.progress {
        let at = one.at.unwrap_or_default();
        let span = (since - offset, at - offset);
        since = at;
        if at < SETTLED {
            continue;
        }
        if span.1 < 0.0 {
            alone.push(one.value);
            continue;
        }
        // The neighbour's intervals that touch this one, and for resting those shortly before it too.
        let works = |from: f64, to: f64| -> Option<(bool, bool)> {
            let mut start = 0.0;
            let mut touching = Vec::new();
            for theirs in &neighbour.progress {
                let end = theirs.at.unwrap_or_default();
                if end > from && start < to {
                    touching.push(theirs.value >= most * RESTING);
                }
                start = end;
            }
            (!touching.is_empty()).then(|| (touching.iter().all(|works| *works), touching.iter().any(|works| *works)))
        };
        match (works(span.0 - SETTLED, span.1), works(span.0, span.1)) {
            (Some((_, false)), _) => regained.push(one.value),
            (_, Some((true, _))) => shared.push(one.value),
            _ => {}
        }
    }
    if alone.is_empty() || regained.is_empty() {
        return Err(unmet("the neighbour never rested, or the first guest never ran alone: give it more time"));
    }
    let median = |values: &[f64]| entrain_stats::median(values).unwrap_or(f64::NAN);
    if median(&alone) <= 0.0 {
        return Err(unmet("the first guest got nothing done alone: this computer is too busy to tell"));
    }
    readings.push("alone", "1/s", Higher, median(&alone));
    readings.push("regained", "%", Higher, 100.0 * median(&regained) / median(&alone));
    if !shared.is_empty() {
        readings.push("shared", "%", Higher, 100.0 * median(&shared) / median(&alone));
    }
    Ok(())
}

/// How long the first guest took to use all pCPUs after its neighbour rested, and to use no more vCPUs than it has pCPUs
/// after it came back.
fn times(own: &[Run], neighbour: &[Run], pcpus: usize, readings: &mut Readings) -> Result<()> {
    let Some(start) = own.first().map(|run| run.start) else { return Err(unmet("the first guest never ran")) };
    let end = own.iter().chain(neighbour).map(|run| run.end).fold(start, f64::max);
    let windows = ((end - start) / WINDOW) as usize;
    let works: Vec<bool> =
        (0..windows).map(|w| ran(neighbour, start + w as f64 * WINDOW, WINDOW) > WINDOW / 4.0).collect();
    let (mut grow, mut shrink, mut unshrunk) = (Vec::new(), Vec::new(), 0);
    for (window, rests) in edges(&works) {
        let about = start + window as f64 * WINDOW;
        let near = |at: f64| (about - 2.0 * WINDOW..about + 2.0 * WINDOW).contains(&at);
        let long = neighbour.iter().filter(|run| run.end - run.start > BLIP);
        if rests {
            let edge = long.map(|run| run.end).filter(|at| near(*at)).fold(about - 2.0 * WINDOW, f64::max);
            grow.push(grown(own, edge, pcpus));
        } else {
            let edge = long.map(|run| run.start).filter(|at| near(*at)).fold(about + 2.0 * WINDOW, f64::min);
            match shrunk(own, edge, (pcpus / 2).max(1)) {
                Some(time) => shrink.push(time),
                None => unshrunk += 1,
            }
        }
    }
    readings.push("steps", "1", Higher, grow.len() as f64);
    readings.push("unshrunk", "1", Lower, f64::from(unshrunk));
    for (name, mut times) in [("grow", grow), ("shrink", shrink)] {
        times.sort_by(f64::total_cmp);
        if let Some(last) = times.last() {
            readings.push(&format!("{name}_max"), "ms", Lower, 1e3 * last);
            readings.push(&format!("{name}_p50"), "ms", Lower, 1e3 * times[times.len() / 2]);
        }
    }
    Ok(())
}

/// The windows at which the neighbour begins (false) or ceases (true) to work.
fn edges(works: &[bool]) -> Vec<(usize, bool)> {
    let count = |range: &[bool]| range.iter().filter(|works| **works).count() as i32;
    let score = |at: usize| count(&works[at - REACH..at]) - count(&works[at..at + REACH]);
    let Some(last) = works.len().checked_sub(REACH) else { return Vec::new() };
    let mut found: Vec<(usize, i32)> = Vec::new();
    for at in REACH..=last {
        let score = score(at);
        if score.abs() < CLEAR {
            continue;
        }
        match found.last_mut() {
            // The same step: the clearest window is it.
            Some((place, best)) if at - *place < REACH && best.signum() == score.signum() => {
                if score.abs() > best.abs() {
                    (*place, *best) = (at, score);
                }
            }
            _ => found.push((at, score)),
        }
    }
    found.into_iter().map(|(at, score)| (at, score > 0)).collect()
}

/// CPU time of these stretches within a window, s.
fn ran(runs: &[Run], from: f64, length: f64) -> f64 {
    // Stretches are sorted by their start.
    let begin = runs.partition_point(|run| run.start < from - LONGEST);
    let within = runs[begin..].iter().take_while(|run| run.start < from + length);
    within.map(|run| (run.end.min(from + length) - run.start.max(from)).max(0.0)).sum()
}

/// Time from `edge` until the guest keeps all pCPUs busy for a window; at most [`LATEST`].
fn grown(own: &[Run], edge: f64, pcpus: usize) -> f64 {
    let begin = own.partition_point(|run| run.start < edge);
    let starts = own[begin..].iter().map(|run| run.start).take_while(|at| *at < edge + LATEST);
    std::iter::once(edge)
        .chain(starts)
        .find(|at| ran(own, *at, WINDOW) >= 0.8 * pcpus as f64 * WINDOW)
        .map_or(LATEST, |at| at - edge)
}

/// Time from `edge` until no more than `fit` vCPUs of the guest run in any of ten windows in a row.
fn shrunk(own: &[Run], edge: f64, fit: usize) -> Option<f64> {
    let vcpus = |at: f64| {
        let mut tids: Vec<u32> = own.iter().map(|run| run.tid).collect();
        tids.sort_unstable();
        tids.dedup();
        let busy = |tid: &u32| {
            let runs: Vec<Run> = own.iter().filter(|run| run.tid == *tid).copied().collect();
            ran(&runs, at, WINDOW) > WINDOW / 10.0
        };
        tids.iter().filter(|tid| busy(tid)).count()
    };
    let few: Vec<bool> = (0..(LATEST / WINDOW) as usize + 10).map(|w| vcpus(edge + w as f64 * WINDOW) <= fit).collect();
    few.windows(10).position(|ten| ten.iter().all(|few| *few)).map(|w| w as f64 * WINDOW)
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
