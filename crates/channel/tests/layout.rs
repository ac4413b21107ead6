//! The C header and its mirror in Rust say the same: every field of every structure (by the BTF that clang writes for the
//! header), every constant and every packing (by a C program that prints them).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use entrain_channel::{Field, page, word};
use serde_json::Value;

fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/entrain.h");
    fs::read_to_string(path).expect("the header is there")
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| {
        panic!("{program} did not start: {error}; run the tests with 'make test' or scripts/toolchain.sh run")
    });
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

/// Structures of the header by name: their fields, with offsets and sizes in bytes.
type Layout = BTreeMap<String, Vec<(String, usize, usize)>>;

fn c_layout(header: &str) -> Layout {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (source, object) = (dir.path().join("page.c"), dir.path().join("page.o"));
    fs::write(dir.path().join("entrain.h"), header).expect("written");
    fs::write(&source, "#include <linux/types.h>\n#include \"entrain.h\"\nstruct entrain_page page;\n")
        .expect("written");
    let include = ["-idirafter", "/usr/include/x86_64-linux-gnu", "-I", text(dir.path())];
    let args = [&["-target", "bpf", "-g", "-O2", "-c", text(&source), "-o", text(&object)][..], &include[..]].concat();
    run("clang-19", &args);
    let btf: Value =
        serde_json::from_str(&run("bpftool", &["-j", "btf", "dump", "file", text(&object)])).expect("JSON");
    layout_of_btf(&btf)
}

fn layout_of_btf(btf: &Value) -> Layout {
    let types: BTreeMap<u64, &Value> =
        btf["types"].as_array().expect("types").iter().map(|t| (t["id"].as_u64().expect("an id"), t)).collect();
    fn size(types: &BTreeMap<u64, &Value>, id: u64) -> usize {
        let t = types[&id];
        match t["kind"].as_str().expect("a kind") {
            "ARRAY" => {
                t["nr_elems"].as_u64().expect("a count") as usize * size(types, t["type_id"].as_u64().expect("id"))
            }
            "TYPEDEF" | "CONST" | "VOLATILE" => size(types, t["type_id"].as_u64().expect("an id")),
            _ => t["size"].as_u64().expect("a size") as usize,
        }
    }
    let member = |m: &Value| {
        let bits = m["bits_offset"].as_u64().expect("an offset") as usize;
        let name = m["name"].as_str().expect("a name").to_owned();
        (name, bits / 8, size(&types, m["type_id"].as_u64().expect("an id")))
    };
    types
        .values()
        .filter(|t| t["kind"] == "STRUCT" && t["name"].as_str().is_some_and(|name| name.starts_with("entrain_")))
        .map(|t| {
            let members = t["members"].as_array().expect("members").iter().map(member).collect();
            (t["name"].as_str().expect("a name").to_owned(), members)
        })
        .collect()
}

fn rust_layout() -> Layout {
    let all: [(&str, Vec<Field>); 9] = [
        ("entrain_header", page::Header::fields()),
        ("entrain_link_line", page::LinkLine::fields()),
        ("entrain_guest_words", page::GuestWords::fields()),
        ("entrain_host_slow", page::HostSlow::fields()),
        ("entrain_host_fast", page::HostFast::fields()),
        ("entrain_selftest_shared", page::SelftestShared::fields()),
        ("entrain_selftest_guest", page::SelftestGuest::fields()),
        ("entrain_selftest_host", page::SelftestHost::fields()),
        ("entrain_page", page::Page::fields()),
    ];
    all.into_iter()
        .map(|(name, fields)| {
            (name.to_owned(), fields.into_iter().map(|f| (f.name.to_owned(), f.offset, f.size)).collect())
        })
        .collect()
}

#[test]
fn c_and_rust_lay_the_page_out_alike() {
    assert_eq!(c_layout(&header()), rust_layout());
}

/// Moves, renames, resizes a field of the C header: each must be noticed.
#[test]
fn a_changed_header_is_noticed() {
    let header = header();
    for (from, to) in [
        ("entrain_u64 cookie;", "entrain_u64 biscuit;"),
        ("entrain_u32 version;", "entrain_u32 nr_vcpus_;"),
        ("entrain_u64 perf;", "entrain_u32 perf;"),
        ("struct entrain_guest_words guest;", "struct entrain_guest_words guests;"),
        ("entrain_u64 steal;", "entrain_u64 steal; entrain_u64 more;"),
    ] {
        let changed = header.replacen(from, to, 1).replace("_Static_assert(", "_Static_assert(1 || ");
        assert_ne!(changed, header, "{from} is in the header");
        assert_ne!(c_layout(&changed), rust_layout(), "{from} -> {to}");
    }
    // Two fields of one size in each other's place.
    let swapped = header.replacen("entrain_u64 util;", "entrain_u64 @;", 1);
    let swapped = swapped.replacen("entrain_u64 runnable;", "entrain_u64 util;", 1).replacen('@', "runnable", 1);
    assert_ne!(c_layout(&swapped), rust_layout());
}

/// Every object-like macro and enumerator of the header that is a number, by name.
fn c_constants() -> BTreeMap<String, u64> {
    let header = header();
    let macros = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next());
    let enumerators = header.lines().filter_map(|line| line.trim_start().split_once(" =").map(|(name, _)| name));
    let names: Vec<&str> = macros
        .chain(enumerators)
        .filter(|name| name.starts_with("ENTRAIN_") && !name.contains('(') && *name != "ENTRAIN_H")
        .collect();
    let prints = names.iter().map(|name| format!("P({name});\n")).collect::<String>();
    let program = format!(
        "#include <stdio.h>\n#include \"entrain.h\"\n#define P(x) printf(\"%s %llu\\n\", #x, (unsigned long long)(x))\n\
         int main(void) {{\n{prints}\
         P(ENTRAIN_WORD(0x123456789abcdef1ULL, 0xabcdef));\n\
         P(ENTRAIN_VALUE(0x123456789abcdef1ULL, 0x12345613557cdef1ULL));\n\
         P(ENTRAIN_VALUE(0x123456789abcdef1ULL, 0x12345613557cdef0ULL));\n\
         P(ENTRAIN_LINK(0xfedcba98, ENTRAIN_LINK_RELEASED));\n\
         P(ENTRAIN_LINK_STATE(0xfedcba9800000004ULL));\n\
         P(ENTRAIN_LINK_STATE(0xfedcba9800000104ULL));\n\
         P(ENTRAIN_LINK_GEN(0xfedcba9800000004ULL));\n\
         P(ENTRAIN_STATE(ENTRAIN_VCPU_PREEMPTED, ENTRAIN_STATE_IN_CS | ENTRAIN_STATE_EXTENDED, 513, 0xfedcba));\n\
         P(ENTRAIN_STATE_VCPU(0xabcdfedcba020163ULL));\n\
         P(ENTRAIN_STATE_PCPU(0xabcdfedcba020163ULL));\n\
         P(ENTRAIN_STATE_SEQ(0xabcdfedcba020163ULL));\n\
         int f[] = {{entrain_fresh(5, 0, 9), entrain_fresh(9, 1, 9), entrain_fresh(10, 1, 9), entrain_fresh(1, 2, 9)}};\n\
         P(f[0]); P(f[1]); P(f[2]); P(f[3]);\n}}\n"
    );
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (source, binary): (PathBuf, PathBuf) = (dir.path().join("print.c"), dir.path().join("print"));
    fs::write(&source, program).expect("written");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    run("gcc", &["-Wall", "-I", include, text(&source), "-o", text(&binary)]);
    run(text(&binary), &[])
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

#[test]
fn c_and_rust_agree_on_constants_and_packing() {
    let mut c = c_constants();
    let mut same = |name: &str, value: u64| {
        let found = c.remove(name).unwrap_or_else(|| panic!("{name} is not in the header"));
        assert_eq!(found, value, "{name}");
    };
    for (name, bit) in page::feature::NAMES {
        same(&format!("ENTRAIN_F_{name}"), bit);
    }
    let seed = word::Seed::from_raw(0x1234_5678_9abc_def1).expect("a seed");
    let state = word::VcpuState { vcpu: word::Vcpu::Preempted, in_cs: true, extended: true, pcpu: 513, seq: 0xfedcba };
    let link = word::Link { generation: 0xfedc_ba98, state: word::LinkState::Released };
    let read = word::Link::from_raw(0xfedc_ba98_0000_0004).expect("a link");
    // All 32 bits are the state: what no side writes is no state, and not the one that its low bits look like.
    assert_eq!(word::Link::from_raw(0xfedc_ba98_0000_0104), None);
    let seen = word::VcpuState::unpack(0xabcd_fedc_ba02_0163);
    for (name, value) in [
        ("ENTRAIN_PAGE_SIZE", page::PAGE_SIZE as u64),
        ("ENTRAIN_LINE_SIZE", 64),
        ("ENTRAIN_MAGIC0", page::MAGIC0),
        ("ENTRAIN_MAGIC1", page::MAGIC1),
        ("ENTRAIN_VERSION", page::VERSION.into()),
        ("ENTRAIN_MAX_VCPUS", page::MAX_VCPUS as u64),
        ("ENTRAIN_DOORBELL_NR", page::DOORBELL_NR),
        ("ENTRAIN_GUEST_BEAT_NS", page::GUEST_BEAT_NS),
        ("ENTRAIN_GUEST_EXPIRY_NS", page::GUEST_EXPIRY_NS),
        ("ENTRAIN_HOST_BEAT_NS", page::HOST_BEAT_NS),
        ("ENTRAIN_HOST_EXPIRY_NS", page::HOST_EXPIRY_NS),
        ("ENTRAIN_ENTITLE_NS", page::ENTITLE_NS),
        ("ENTRAIN_LINK_NONE", word::LinkState::None as u64),
        ("ENTRAIN_LINK_OFFERED", word::LinkState::Offered as u64),
        ("ENTRAIN_LINK_PAIRED", word::LinkState::Paired as u64),
        ("ENTRAIN_LINK_RELEASING", word::LinkState::Releasing as u64),
        ("ENTRAIN_LINK_RELEASED", word::LinkState::Released as u64),
        ("ENTRAIN_LINK_WITHDRAWN", word::LinkState::Withdrawn as u64),
        ("ENTRAIN_PREEMPT_NONE", page::PreemptLayout::None as u64),
        ("ENTRAIN_PREEMPT_PERCPU32", page::PreemptLayout::PerCpu32 as u64),
        ("ENTRAIN_PREEMPT_PERCPU64", page::PreemptLayout::PerCpu64 as u64),
        ("ENTRAIN_PREEMPT_TASK32", page::PreemptLayout::Task32 as u64),
        ("ENTRAIN_PREEMPT_TASK64", page::PreemptLayout::Task64 as u64),
        ("ENTRAIN_VCPU_UNKNOWN", word::Vcpu::Unknown as u64),
        ("ENTRAIN_VCPU_RUNNING", word::Vcpu::Running as u64),
        ("ENTRAIN_VCPU_HALTED", word::Vcpu::Halted as u64),
        ("ENTRAIN_VCPU_PREEMPTED", word::Vcpu::Preempted as u64),
        ("ENTRAIN_VALUE_SHIFT", word::VALUE_SHIFT.into()),
        ("ENTRAIN_VALUE_MAX", word::VALUE_MAX),
        ("ENTRAIN_TIME_SHIFT", word::TIME_SHIFT.into()),
        ("ENTRAIN_STATE_IN_CS", 1 << 5),
        ("ENTRAIN_STATE_EXTENDED", 1 << 6),
        ("ENTRAIN_INSTANT_NOW", 1),
        ("ENTRAIN_CAPACITY_SCALE", page::CAPACITY_SCALE),
        ("ENTRAIN_WORD(0x123456789abcdef1ULL, 0xabcdef)", seed.pack(0xabcdef)),
        ("ENTRAIN_VALUE(0x123456789abcdef1ULL, 0x12345613557cdef1ULL)", seed.unpack(0x1234_5613_557c_def1)),
        ("ENTRAIN_VALUE(0x123456789abcdef1ULL, 0x12345613557cdef0ULL)", 0),
        ("ENTRAIN_LINK(0xfedcba98, ENTRAIN_LINK_RELEASED)", link.raw()),
        ("ENTRAIN_LINK_STATE(0xfedcba9800000004ULL)", read.state as u64),
        ("ENTRAIN_LINK_STATE(0xfedcba9800000104ULL)", 0x104),
        ("ENTRAIN_LINK_GEN(0xfedcba9800000004ULL)", read.generation.into()),
        (
            "ENTRAIN_STATE(ENTRAIN_VCPU_PREEMPTED, ENTRAIN_STATE_IN_CS | ENTRAIN_STATE_EXTENDED, 513, 0xfedcba)",
            state.pack(),
        ),
        ("ENTRAIN_STATE_VCPU(0xabcdfedcba020163ULL)", seen.vcpu as u64),
        ("ENTRAIN_STATE_PCPU(0xabcdfedcba020163ULL)", seen.pcpu.into()),
        ("ENTRAIN_STATE_SEQ(0xabcdfedcba020163ULL)", seen.seq.into()),
        ("f[0]", word::fresh(5, 0, 9).into()),
        ("f[1]", word::fresh(9, 1, 9).into()),
        ("f[2]", word::fresh(10, 1, 9).into()),
        ("f[3]", word::fresh(1, 2, 9).into()),
    ] {
        same(name, value);
    }
    assert!(c.is_empty(), "in the header but not compared: {c:?}");
}
