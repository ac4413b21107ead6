//! `entrain_guest.h`, as an RTOS would compile it: free-standing, without a warning, for both architectures; and its guest
//! against the product's checks of an offer (`validate.rs`) and a host by the rules of docs/abi.md on the same memory.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use entrain_channel::page::{GUEST_BEAT_NS, HOST_EXPIRY_NS, PAGE_SIZE, Page, feature};
use entrain_channel::protocol::{Shared, Snapshot, Word};
use entrain_channel::validate::{Preempt, ValidatedHeader, validate, validate_directory, validate_sibling};
use entrain_channel::word::{Link, LinkState, Seed};

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
const CPUS: usize = 3;

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| {
        panic!("{program} did not start: {error}; run the tests with 'make test' or scripts/toolchain.sh run")
    });
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn it_compiles_free_standing_for_both_architectures() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("user.c");
    let text = "#include \"entrain_guest.h\"\nint use(struct entrain_guest *g, uint64_t now);\n\
                int use(struct entrain_guest *g, uint64_t now)\n{\n\
                if (entrain_guest_init(g, 4096, 64, now))\n\treturn -1;\n\
                entrain_guest_enter(g, 0);\n\tentrain_guest_leave(g, 0);\n\
                entrain_guest_priority(g, 0, 49, 1);\n\tentrain_guest_load(g, 0, 1, 512);\n\
                return entrain_guest_tick(g, 0, now) + (int)entrain_guest_read(g, 0, host_fast.steal) +\n\
                entrain_guest_take_back(g, 0, 1);\n}\n";
    fs::write(&source, text).expect("written");
    let (source, object) = (source.to_str().expect("text"), dir.path().join("user.o"));
    for target in ["aarch64-none-elf", "x86_64-none-elf"] {
        for standard in ["c11", "c17"] {
            let standard = format!("-std={standard}");
            let flags = ["-target", target, &standard, "-ffreestanding", "-nostdlibinc", "-O2", "-mgeneral-regs-only"];
            let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", INCLUDE, "-c", source, "-o"];
            run("clang-19", &[&flags[..], &strict[..], &[object.to_str().expect("text")]].concat());
        }
        // What it asks of others: nothing.
        let undefined = Command::new("llvm-nm-19").arg("--undefined-only").arg(&object).output();
        assert_eq!(String::from_utf8_lossy(&undefined.expect("llvm-nm-19").stdout).trim(), "", "{target}");
    }
}

/// What a host sees when it looks at a page that it has paired with.
#[derive(Debug, PartialEq, Eq)]
enum HostView {
    Paired,
    Releasing,
    Lost,
}

/// A host's side of one page, by sections 3 and 4 of docs/abi.md.
#[derive(Debug)]
struct Host {
    link: Link,
    seed: Seed,
}

/// A host word, and what the host left in it.
struct HostWord {
    seed: Seed,
    mirror: u64,
}

impl Host {
    fn pair(page: &Page, snapshot: &Snapshot<entrain_channel::page::HeaderValues>) -> Option<Self> {
        let offer = Link::from_raw(snapshot.link).filter(|link| link.state == LinkState::Offered)?;
        let (link, seed) = (offer.with(LinkState::Paired), Seed::from_raw(snapshot.seed)?);
        Word::swap(page.link(), offer.raw(), link.raw()).then_some(Self { link, seed })
    }

    fn word(&self) -> HostWord {
        HostWord { seed: self.seed, mirror: self.seed.raw() }
    }

    fn look(&self, page: &Page) -> HostView {
        match Word::load(page.link()) {
            now if now == self.link.raw() => HostView::Paired,
            now if now == self.link.with(LinkState::Releasing).raw() => HostView::Releasing,
            _ => HostView::Lost,
        }
    }

    fn let_go(self, page: &Page) {
        let released = self.link.with(LinkState::Released).raw();
        let states = [LinkState::Paired, LinkState::Releasing];
        assert!(states.iter().any(|&state| Word::swap(page.link(), self.link.with(state).raw(), released)));
    }
}

impl HostWord {
    /// False: the word is no longer what the host left there, and nothing was written.
    fn publish(&mut self, word: &impl Word, value: u64) -> bool {
        let new = self.seed.pack(value);
        let done = self.mirror == new || word.swap(self.mirror, new);
        self.mirror = if done { new } else { self.mirror };
        done
    }
}

/// The header's guest with its memory, in this process.
struct Guest {
    handle: *mut c_void,
    memory: *mut u8,
}

const LIBRARY: &str = r#"
#define ENTRAIN_GUEST_NO_DOORBELL
#include "entrain_guest.h"
static struct entrain_guest guest;
int t_init(char *memory, uint32_t cpus, uint64_t entropy)
{
	guest = (struct entrain_guest){.pages = (void *)memory, .cpus = (void *)(memory + cpus * 4096), .nr_vcpus = cpus};
	return entrain_guest_init(&guest, 0x100000, 0x100000 + cpus * 4096, entropy);
}
int t_tick(unsigned int cpu, uint64_t now) { return entrain_guest_tick(&guest, cpu, now); }
int t_back(unsigned int cpu, uint64_t force) { return entrain_guest_take_back(&guest, cpu, (int)force); }
int t_mark(unsigned int cpu, uint64_t enter)
{
	enter ? entrain_guest_enter(&guest, cpu) : entrain_guest_leave(&guest, cpu);
	return (int)guest.cpus[cpu].preempt;
}
int t_prio(unsigned int cpu, uint64_t prio) { entrain_guest_priority(&guest, cpu, (unsigned int)prio, 7); return 0; }
int t_steal(unsigned int cpu, uint64_t unused) { (void)unused; return (int)entrain_guest_read(&guest, cpu, host_fast.steal); }
"#;

impl Guest {
    fn new(dir: &Path) -> Self {
        let (source, library) = (dir.join("guest.c"), dir.join("guest.so"));
        fs::write(&source, LIBRARY).expect("written");
        let (source, name) = (source.to_str().expect("text"), library.to_str().expect("text"));
        run(
            "gcc",
            &["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-I", INCLUDE, source, "-o", name],
        );
        let path = CString::new(name).expect("no zero");
        // SAFETY: a library that was just built, without constructors; memory of three pages and three lines, never freed.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "the library loads");
            let memory = libc::aligned_alloc(PAGE_SIZE, (CPUS + 1) * PAGE_SIZE).cast::<u8>();
            // What an earlier boot left there.
            memory.write_bytes(0xa5, (CPUS + 1) * PAGE_SIZE);
            Self { handle, memory }
        }
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("no zero");
        // SAFETY: the handle is open, the name ends with a zero.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    fn init(&self, entropy: u64) -> c_int {
        type Init = unsafe extern "C" fn(*mut u8, u32, u64) -> c_int;
        // SAFETY: the signature is that of the library's source; the memory is as big as it says.
        unsafe { std::mem::transmute::<*mut c_void, Init>(self.symbol("t_init"))(self.memory, CPUS as u32, entropy) }
    }

    fn call(&self, name: &str, cpu: usize, value: u64) -> c_int {
        type Call = unsafe extern "C" fn(c_uint, u64) -> c_int;
        // SAFETY: all of these functions have this signature.
        unsafe { std::mem::transmute::<*mut c_void, Call>(self.symbol(name))(cpu as c_uint, value) }
    }

    fn page(&self, cpu: usize) -> &Page {
        // SAFETY: page-aligned memory that lives as long as the process.
        unsafe { Page::at(self.memory.add(cpu * PAGE_SIZE)) }
    }

    fn gpa(cpu: usize) -> u64 {
        0x10_0000 + (cpu * PAGE_SIZE) as u64
    }

    fn verified(&self, cpu: usize) -> (ValidatedHeader, Host) {
        let page = self.page(cpu);
        let snapshot = Snapshot::read(page);
        let in_ram = |gpa: u64, length: u64| gpa >= 0x10_0000 && gpa + length <= Self::gpa(CPUS + 1);
        let header = validate(&snapshot, Self::gpa(cpu), &in_ram).expect("a page that the host takes");
        (header, Host::pair(page, &snapshot).expect("still on offer"))
    }

    fn link(&self, cpu: usize) -> Link {
        Link::from_raw(self.page(cpu).link().load(SeqCst)).expect("a link")
    }
}

#[test]
fn a_host_pairs_with_it_and_every_end_is_survived() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let guest = Guest::new(dir.path());
    assert_eq!(guest.init(42), 0);
    let mut now = 1_000;
    for cpu in 0..CPUS {
        assert_eq!(guest.call("t_tick", cpu, now), 0, "nobody has paired yet");
    }
    // All pages are of one registration, and the first names them.
    let (first, host) = guest.verified(0);
    assert_eq!(first.features, feature::PREEMPT_COUNT | feature::GUEST_WORDS);
    let directory = std::array::from_fn(|i| guest.page(0).directory[i].load(SeqCst));
    let pages = validate_directory(&first, &directory, &|_, _| true).expect("a directory");
    assert_eq!(pages, (0..CPUS).map(Guest::gpa).collect::<Vec<_>>());
    let hosts: Vec<Host> = (1..CPUS)
        .map(|cpu| {
            let (header, host) = guest.verified(cpu);
            validate_sibling(&first, cpu as u32, &header).expect("of the same registration");
            assert_ne!(header.seed, first.seed);
            host
        })
        .collect();

    // The preempt count is where the header says.
    let Some(Preempt::PerCpu { gpa, size: 4 }) = first.preempt else { panic!("{:?}", first.preempt) };
    let count = || {
        // SAFETY: inside the guest's memory, aligned, as validated.
        unsafe { guest.memory.add((gpa - Guest::gpa(0)) as usize).cast::<u32>().read_volatile() }
    };
    assert_eq!(count(), 0);
    assert_eq!((guest.call("t_mark", 0, 1), guest.call("t_mark", 0, 1), count()), (1, 2, 2));
    assert_eq!((guest.call("t_mark", 0, 0), guest.call("t_mark", 0, 0), count()), (1, 0, 0));
    guest.call("t_prio", 0, 49);
    assert_eq!((guest.page(0).guest.prio.load(SeqCst), guest.page(0).guest.latency.load(SeqCst)), (49, 7));

    // Host words reach the guest; heartbeats keep the pairing; the guest's own heartbeat moves every half second.
    assert!(host.word().publish(&guest.page(0).host_fast.steal, 5));
    assert_eq!(guest.call("t_steal", 0, 0), 5);
    let (mut beat, begun) = (host.word(), guest.page(0).guest.heartbeat.load(SeqCst));
    for step in 0..20 {
        now += GUEST_BEAT_NS / 2;
        assert!(beat.publish(&guest.page(0).host_slow.heartbeat, step + 1));
        assert_eq!(guest.call("t_tick", 0, now), 1);
    }
    assert_eq!(guest.page(0).guest.heartbeat.load(SeqCst) - begun, 10);
    assert_eq!(host.look(guest.page(0)), HostView::Paired);

    // A host that leaves: a new offer, of a new generation, with another seed.
    let (old, seed) = (host.link.generation, host.seed);
    host.let_go(guest.page(0));
    assert_eq!(guest.call("t_tick", 0, now), 0);
    assert_eq!(guest.link(0), Link { generation: old.wrapping_add(1), state: LinkState::Offered });
    let (_, host) = guest.verified(0);
    assert_ne!(host.seed, seed);
    assert_eq!((guest.call("t_tick", 0, now + 1), guest.call("t_steal", 0, 0)), (1, 0), "of this pairing nothing yet");

    // A host that falls silent: the guest takes the page back, and no late write of that host arrives.
    let mut late = host.word();
    assert_eq!(guest.call("t_tick", 0, now + HOST_EXPIRY_NS + 1), 0);
    assert_eq!(host.look(guest.page(0)), HostView::Lost);
    assert!(!late.publish(&guest.page(0).host_fast.steal, 9));
    assert_eq!(guest.call("t_steal", 0, 0), 0);

    // Taking back: an offer at once; a pairing when the host has answered, or by force.
    assert_eq!(guest.call("t_back", 0, 0), 1);
    assert_eq!(guest.page(0).link().load(SeqCst), 0);
    let [first, second] = <[Host; 2]>::try_from(hosts).expect("two");
    assert_eq!(guest.call("t_back", 1, 0), 0);
    assert_eq!(first.look(guest.page(1)), HostView::Releasing);
    assert_eq!(guest.call("t_back", 1, 0), 0, "it waits");
    first.let_go(guest.page(1));
    assert_eq!(guest.call("t_back", 1, 0), 1);
    assert_eq!((guest.call("t_back", 2, 0), guest.call("t_back", 2, 1)), (0, 1));
    assert_eq!(second.look(guest.page(2)), HostView::Lost);
    assert!(guest.page(2).host_words().all(|word| word.load(SeqCst) == 0));
}

#[test]
fn what_an_earlier_boot_left_is_no_pairing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let guest = Guest::new(dir.path());
    assert_eq!(guest.init(1), 0);
    guest.call("t_tick", 0, 1_000);
    let (first, host) = guest.verified(0);
    let mut word = host.word();
    assert_eq!(guest.init(2), 0, "the machine starts anew, with the page in the same place");
    assert_eq!(host.look(guest.page(0)), HostView::Lost);
    assert!(!word.publish(&guest.page(0).host_fast.steal, 9));
    guest.call("t_tick", 0, 1_000);
    let (again, _) = guest.verified(0);
    assert!(again.cookie != first.cookie && again.boot_id != first.boot_id && again.seed != first.seed);
}

#[test]
fn memory_that_is_not_as_it_must_be_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let guest = Guest::new(dir.path());
    // SAFETY: still inside the allocation; init returns before it writes.
    let shifted = Guest { handle: guest.handle, memory: unsafe { guest.memory.add(64) } };
    assert_eq!(shifted.init(1), -1);
}
