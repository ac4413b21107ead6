//! A trace in Perfetto's own format: the host's recording, and those of guests.
//!
//! A trace is a row of packets, so it can be appended to another one (`cat a b >c`), for example of Perfetto's own tools on
//! the same host: all times are CLOCK_MONOTONIC of the host, and a snapshot of clocks relates that to Perfetto's. Numbers of
//! fields: protos/perfetto/trace/trace_packet.proto and track_event.proto of Perfetto's source.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::proto::Message;
use crate::analysis::{Analysis, State, Wait};
use crate::file::Clock;
use crate::guest::Stay;

/// `BuiltinClock`.
const MONOTONIC: u64 = 3;
const BOOTTIME: u64 = 6;
/// `TrackEvent.Type`.
const BEGIN: u64 = 1;
const END: u64 = 2;

/// A guest's tasks, with the process of its VMM.
pub(crate) type Guest = (i32, Vec<Stay>);

/// Writes the trace. `clocks` are the host's recording's.
pub(crate) fn write(analysis: &Analysis, clocks: &[Clock], guests: &[Guest], path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write_to(analysis, clocks, guests, &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// A writer of packets.
struct Trace<W> {
    out: W,
    /// Tells the packets of this trace from others that it may be appended to.
    sequence: u64,
    first: bool,
}

impl<W: Write> Trace<W> {
    fn put(&mut self, packet: Message) -> io::Result<()> {
        let mut packet = packet.number(10, self.sequence);
        if std::mem::take(&mut self.first) {
            // SEQ_INCREMENTAL_STATE_CLEARED: nothing before is referred to.
            packet = packet.number(13, 1);
        }
        self.out.write_all(Message::default().inside(1, &packet).done())
    }

    fn track(&mut self, uuid: u64, parent: Option<u64>, name: &str, process: Option<i32>) -> io::Result<()> {
        let mut track = Message::default().number(1, uuid).text(2, name);
        if let Some(parent) = parent {
            track = track.number(5, parent);
        }
        if let Some(pid) = process {
            track = track.inside(3, &Message::default().number(1, pid.max(0) as u64).text(6, name));
        }
        self.put(Message::default().inside(60, &track))
    }

    /// A slice: its begin, and its end.
    fn slice(&mut self, track: u64, (start, end): (u64, u64), name: &str, notes: &[(&str, String)]) -> io::Result<()> {
        let mut event = Message::default().number(9, BEGIN).number(11, track).text(23, name);
        for (key, value) in notes {
            event = event.inside(4, &Message::default().text(10, key).text(6, value));
        }
        self.event(start, &event)?;
        self.event(end, &Message::default().number(9, END).number(11, track))
    }

    fn event(&mut self, ns: u64, event: &Message) -> io::Result<()> {
        self.put(Message::default().number(8, ns).number(58, MONOTONIC).inside(11, event))
    }
}

/// The number of a track: what it is of, in bits that tell them apart. A process may have several VMs, each with up to 4,096
/// vCPUs.
fn uuid(sort: u64, pid: i32, number: u64) -> u64 {
    sort << 60 | u64::from(pid.cast_unsigned()) << 24 | number
}

/// vCPU `id` of the VM in place `vm` of the recording.
fn of_vm(vm: usize, id: u64) -> u64 {
    (vm as u64 & 0xfff) << 12 | id & 0xfff
}

const PCPUS: u64 = 1;
const VM: u64 = 2;
const VCPU: u64 = 3;
const GUEST: u64 = 4;

fn write_to(analysis: &Analysis, clocks: &[Clock], guests: &[Guest], out: impl Write) -> io::Result<()> {
    let sequence = u64::from((analysis.began_ns ^ analysis.began_unix) as u32 | 1 << 31);
    let mut trace = Trace { out, sequence, first: true };
    for Clock(_, monotonic, boottime) in clocks {
        let clock = |id, ns| Message::default().number(1, id).number(2, ns);
        let snapshot =
            Message::default().inside(1, &clock(MONOTONIC, *monotonic)).inside(1, &clock(BOOTTIME, *boottime));
        trace.put(Message::default().inside(6, &snapshot.number(2, BOOTTIME)))?;
    }
    let at = |(start, end): (u64, u64)| (analysis.began_ns + start, analysis.began_ns + end);
    let pcpus = uuid(PCPUS, 0, 0);
    trace.track(pcpus, None, "pCPUs", None)?;
    let mut cpus: Vec<u16> = analysis.occupancy.iter().map(|stay| stay.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    for cpu in cpus {
        trace.track(uuid(PCPUS, 1, u64::from(cpu)), Some(pcpus), &format!("pCPU {cpu}"), None)?;
    }
    for stay in &analysis.occupancy {
        trace.slice(uuid(PCPUS, 1, u64::from(stay.cpu)), at((stay.start, stay.end)), &stay.who.name, &[])?;
    }
    for (place, vm) in analysis.vms.iter().enumerate() {
        let process = uuid(VM, vm.pid, of_vm(place, 0));
        trace.track(process, None, &vm.name, Some(vm.pid))?;
        for vcpu in &vm.vcpus {
            let track = uuid(VCPU, vm.pid, of_vm(place, u64::from(vcpu.id)));
            trace.track(track, Some(process), &format!("vCPU {}", vcpu.id), None)?;
            for segment in vcpu.segments.iter().filter(|segment| segment.state != State::Halted) {
                let place = vcpu.waits.binary_search_by_key(&segment.start, |wait| wait.start_ns);
                let waited = matches!(segment.state, State::Ready | State::Holder | State::Sibling);
                let wait = place.ok().filter(|_| waited).map(|place| &vcpu.waits[place]);
                let notes = wait.map(notes).unwrap_or_default();
                trace.slice(track, at((segment.start, segment.end)), segment.state.words(), &notes)?;
            }
        }
        for stays in guests.iter().filter(|(pid, _)| *pid == vm.pid).map(|(_, stays)| stays) {
            let mut vcpus: Vec<u16> = stays.iter().map(|stay| stay.vcpu).collect();
            vcpus.sort_unstable();
            vcpus.dedup();
            for vcpu in vcpus {
                let track = uuid(GUEST, vm.pid, of_vm(place, u64::from(vcpu)));
                trace.track(track, Some(process), &format!("vCPU {vcpu}, in the guest"), None)?;
            }
            for stay in stays {
                let track = uuid(GUEST, vm.pid, of_vm(place, u64::from(stay.vcpu)));
                trace.slice(track, (stay.start, stay.end), &stay.name, &[("thread", stay.tid.to_string())])?;
            }
        }
    }
    trace.out.flush()
}

fn notes(wait: &Wait) -> Vec<(&'static str, String)> {
    let ran: Vec<String> = wait.ran.iter().map(|(who, ns)| format!("{} {ns} ns", who.name)).collect();
    vec![("why", wait.reason.words().to_owned()), ("pcpu", wait.pcpu.to_string()), ("who ran", ran.join(", "))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::tests::recording;

    /// Fields of a message: number, and a varint's value or the bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        }
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = varint(&mut bytes);
            let mut inside = Vec::new();
            if tag & 7 == 2 {
                let (this, rest) = bytes.split_at(value as usize);
                (inside, bytes) = (this.to_vec(), rest);
            }
            all.push((tag >> 3, value, inside));
        }
        all
    }

    #[test]
    fn a_guests_tasks_stand_below_its_vcpus_in_the_hosts_time() {
        let analysis = Analysis::of(&recording());
        let stay = Stay { vcpu: 0, start: 1_021_000_000, end: 1_029_000_000, tid: 77, name: "guest-task".into() };
        let mut bytes = Vec::new();
        write_to(&analysis, &[Clock(1, 2, 3)], &[(9, vec![stay])], &mut bytes).unwrap();
        let packets: Vec<_> = fields(&bytes).into_iter().map(|(field, _, packet)| (field, fields(&packet))).collect();
        assert!(packets.iter().all(|(field, _)| *field == 1));
        let of = |packet: &[(u64, u64, Vec<u8>)], field| packet.iter().find(|one| one.0 == field).cloned();
        let event = |name: &str| {
            packets.iter().find_map(|(_, packet)| {
                let (_, _, event) = of(packet, 11)?;
                let event = fields(&event);
                (of(&event, 23)?.2 == name.as_bytes()).then(|| (of(packet, 8).unwrap().1, of(&event, 11).unwrap().1))
            })
        };
        let (at, track) = event("guest-task").expect("there");
        assert_eq!((at, track), (1_021_000_000, uuid(GUEST, 9, 0)));
        // vCPU 0 of the same VM was preempted from 20 ms on.
        assert_eq!(event("holder preempted"), Some((1_020_000_000, uuid(VCPU, 9, 0))));
        let begins = |what: u64| {
            let events = packets.iter().filter_map(|(_, packet)| of(packet, 11));
            events.filter(|(_, _, event)| of(&fields(event), 9).unwrap().1 == what).count()
        };
        assert_eq!(begins(BEGIN), begins(END));
        assert!(packets.iter().all(|(_, packet)| of(packet, 10).is_some()), "each packet names its sequence");
    }
}
