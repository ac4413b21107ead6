//! Compares the kernel's own type information (BTF) with what the module was written for.

use std::collections::HashMap;
use std::path::Path;

use libbpf_rs::btf::types::{Const, Func, FuncProto, MemberAttr, Ptr, Struct, Union};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, HasSize, ReferencesType, TypeId};

use crate::known::{LOCK, LOCKDEP_LOCK, Layout, Series, layouts};

/// What differs in the BTF at `path` (raw or in an ELF file), one line each; empty if all is as it must be.
///
/// # Errors
/// The file is missing or holds no BTF.
pub fn differences(path: &Path, series: &Series) -> Result<Vec<String>, libbpf_rs::Error> {
    let btf = Btf::from_path(path)?;
    let mut out = Vec::new();
    // A local lock is a spinlock there. Of any other size, it is told as a difference.
    let is_lock = |s: &Struct<'_>| s.name().is_some_and(|n| n == "spinlock") && s.size() == LOCKDEP_LOCK as usize;
    let lock = if btf.type_by_kind::<Struct<'_>>().any(|s| is_lock(&s)) { LOCKDEP_LOCK } else { LOCK };
    for layout in layouts(lock, series) {
        out.extend(compare_struct(&btf, &layout));
    }
    // A static function may be there twice, from two files; one that differs is enough to stop.
    let mut found: HashMap<&str, Vec<String>> = HashMap::new();
    for func in btf.type_by_kind::<Func<'_>>() {
        let name = func.name().and_then(|n| n.to_str()).unwrap_or_default();
        if let Some((known, _)) = series.functions().chain(series.optional()).find(|(known, _)| *known == name) {
            found.entry(known).or_default().push(prototype(&btf, func.referenced_type()));
        }
    }
    for (name, wanted) in series.functions().chain(series.optional()) {
        let optional = series.optional().iter().any(|(known, _)| known == name);
        match found.get(name).map(Vec::as_slice) {
            None if optional => {}
            None => out.push(format!("function {name} is missing (renamed, or inlined by the compiler)")),
            Some(all) => out.extend(
                all.iter().filter(|is| is != wanted).map(|is| format!("function {name} is {is}, known is {wanted}")),
            ),
        }
    }
    Ok(out)
}

fn compare_struct(btf: &Btf<'_>, known: &Layout) -> Vec<String> {
    let name = known.name;
    let all: Vec<Struct<'_>> =
        btf.type_by_kind::<Struct<'_>>().filter(|s| s.name().is_some_and(|n| n == name)).collect();
    if all.is_empty() {
        return vec![format!("struct {name} is missing")];
    }
    let mut out = Vec::new();
    for found in &all {
        if known.size != 0 && found.size() != known.size as usize {
            out.push(format!("struct {name} has {} bytes, known is {}", found.size(), known.size));
        }
        for &(member, byte) in &known.members {
            match offset(found, member) {
                Some(is) if is == byte * 8 => {}
                Some(is) => out.push(format!("{name}.{member} is at bit {is}, known is {}", byte * 8)),
                None => out.push(format!("{name}.{member} is missing")),
            }
        }
    }
    out
}

fn offset(of: &Struct<'_>, member: &str) -> Option<u32> {
    (0..of.len()).filter_map(|i| of.get(i)).find(|m| m.name.is_some_and(|n| n == member)).and_then(|m| match m.attr {
        MemberAttr::Normal { offset } => Some(offset),
        MemberAttr::BitField { .. } => None,
    })
}

/// A prototype as text, with the parameters' types alone: `bool(int, void*)`.
fn prototype(btf: &Btf<'_>, of: BtfType<'_>) -> String {
    let Ok(proto) = FuncProto::try_from(of) else { return "no function".into() };
    let parameters: Vec<String> = (0..proto.len()).filter_map(|i| proto.get(i)).map(|p| type_name(btf, p.ty)).collect();
    format!("{}({})", type_name(btf, proto.referenced_type().type_id()), parameters.join(", "))
}

fn type_name(btf: &Btf<'_>, id: TypeId) -> String {
    // Type 0 is void and has no entry of its own.
    let Some(ty) = btf.type_by_id::<BtfType<'_>>(id) else { return "void".into() };
    let name = || ty.name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    match ty.kind() {
        BtfKind::Void => "void".into(),
        BtfKind::Ptr => match Ptr::try_from(ty) {
            Ok(p) => format!("{}*", type_name(btf, p.referenced_type().type_id())),
            Err(_) => "?".into(),
        },
        BtfKind::Const => match Const::try_from(ty) {
            Ok(c) => format!("const {}", type_name(btf, c.referenced_type().type_id())),
            Err(_) => "?".into(),
        },
        BtfKind::Struct | BtfKind::Fwd => format!("struct {}", name()),
        BtfKind::Union => Union::try_from(ty).map_or_else(|_| "?".into(), |_| format!("union {}", name())),
        BtfKind::FuncProto => prototype(btf, ty),
        _ => name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs a kernel with BTF, of any version: its own `spinlock` differs without PREEMPT_RT, its functions too.
    #[test]
    fn another_kernel_is_told_apart() {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        if path.exists() && !std::fs::read_to_string("/proc/version").unwrap_or_default().contains("PREEMPT_RT") {
            let out = differences(path, &crate::known::SERIES[0]).unwrap();
            assert!(out.iter().any(|line| line.contains("spinlock")), "{out:?}");
        }
    }

    #[test]
    fn no_btf_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmlinux");
        std::fs::write(&path, "nothing").unwrap();
        assert!(differences(&path, &crate::known::SERIES[0]).is_err());
    }
}
