//! A trace for the Perfetto UI: JSON of the Trace Event Format, which it opens as it is.
//!
//! Each VM is a process with a track for each vCPU; the pCPUs are one more process. Source of the format: "Trace Event
//! Format", the document that Chrome's tracing refers to. Times are in µs, with decimals.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::analysis::{Analysis, Reason, State};

/// The pCPUs' process; VMs have the pids of their VMMs.
const PCPUS: i64 = 0;

/// Writes the trace.
pub(crate) fn write(analysis: &Analysis, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write_to(analysis, &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// The trace's text.
pub(crate) fn write_to(analysis: &Analysis, mut out: impl Write) -> io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut first = true;
    let mut put = |event: Value| -> io::Result<()> {
        if !std::mem::take(&mut first) {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut out, &event).map_err(io::Error::other)
    };
    events(analysis, &mut put)?;
    out.write_all(b"\n]}\n")
}

fn events(analysis: &Analysis, put: &mut dyn FnMut(Value) -> io::Result<()>) -> io::Result<()> {
    put(named("process_name", PCPUS, 0, "pCPUs"))?;
    put(json!({ "name": "process_sort_index", "ph": "M", "pid": PCPUS, "tid": 0, "args": { "sort_index": -1 } }))?;
    let mut cpus: Vec<u16> = analysis.occupancy.iter().map(|stay| stay.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    for cpu in cpus {
        // Thread 0 of process 0 means the idle task to the UI.
        put(named("thread_name", PCPUS, i64::from(cpu) + 1, &format!("pCPU {cpu}")))?;
    }
    for stay in &analysis.occupancy {
        let sort = serde_json::to_value(stay.who.sort).map_err(io::Error::other)?;
        let args = json!({ "sort": sort });
        put(slice(&stay.who.name, "pcpu", PCPUS, i64::from(stay.cpu) + 1, (stay.start, stay.end), args))?;
    }
    for vm in &analysis.vms {
        let pid = i64::from(vm.pid);
        put(named("process_name", pid, 0, &vm.name))?;
        for vcpu in &vm.vcpus {
            let tid = i64::from(vcpu.tid);
            put(named("thread_name", pid, tid, &format!("vCPU {}", vcpu.id)))?;
            let mut waits = vcpu.waits.iter().peekable();
            for segment in vcpu.segments.iter().filter(|segment| segment.state != State::Halted) {
                while waits.peek().is_some_and(|wait| wait.start_ns < segment.start) {
                    waits.next();
                }
                let wait = waits.peek().filter(|wait| wait.start_ns == segment.start);
                let waited = matches!(segment.state, State::Ready | State::Holder | State::Sibling);
                let args = match wait.filter(|_| waited) {
                    Some(wait) => {
                        let ran: Vec<String> =
                            wait.ran.iter().map(|(who, ns)| format!("{} {ns} ns", who.name)).collect();
                        json!({ "why": wait.reason.words(), "pcpu": wait.pcpu, "who ran": ran.join(", ") })
                    }
                    None => json!({}),
                };
                put(slice(segment.state.words(), "vcpu", pid, tid, (segment.start, segment.end), args))?;
            }
            for wait in vcpu.waits.iter().filter(|wait| wait.reason == Reason::GaveWay) {
                put(json!({
                    "name": "gave way", "ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": micros(wait.start_ns),
                }))?;
            }
        }
    }
    Ok(())
}

fn named(what: &str, pid: i64, tid: i64, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": pid, "tid": tid, "args": { "name": name } })
}

fn slice(name: &str, category: &str, pid: i64, tid: i64, (start, end): (u64, u64), args: Value) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid,
        "ts": micros(start), "dur": micros(end - start), "args": args,
    })
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::tests::recording;

    #[test]
    fn slices_of_one_track_do_not_overlap() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        write(&Analysis::of(&recording()), &path).unwrap();
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let vcpu: Vec<(f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == 10)
            .map(|event| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap()))
            .collect();
        assert!(vcpu.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 1e-6), "{vcpu:?}");
        let holder = events.iter().find(|event| event["name"] == "holder preempted").unwrap();
        assert_eq!(holder["args"]["who ran"], "db vCPU 0 10000000 ns, stress (30) 5000000 ns");
        let db = events.iter().find(|event| event["name"] == "db vCPU 0").unwrap();
        assert_eq!((db["ts"].as_f64(), db["dur"].as_f64()), (Some(20_000.0), Some(10_000.0)));
    }
}
