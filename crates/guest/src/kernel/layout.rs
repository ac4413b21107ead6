//! Which form the kernel's preempt count has.

use entrain_channel::page::PreemptLayout;
use libbpf_rs::btf::types::{Int, Struct, Var};
use libbpf_rs::btf::{Btf, HasSize};

use super::probe::Survey;
use crate::error::{GuestError, Result};

/// The sizes that decide which layout it is, from BTF.
pub(super) struct Types {
    preempt_count: Option<usize>,
    hot_count: bool,
    irq_disable_state: bool,
    /// Bytes of x86_cpu_to_apicid.
    pub(super) apicid: Option<usize>,
}

impl Types {
    pub(super) fn of(btf: &Btf<'_>) -> Self {
        let variable = |name: &str| {
            let int: Int<'_> =
                btf.type_by_name::<Var<'_>>(name)?.next_type()?.skip_mods_and_typedefs().try_into().ok()?;
            Some(int.bits as usize / 8)
        };
        let hot_count = btf.type_by_name::<Var<'_>>("pcpu_hot").is_some()
            && btf.type_by_name::<Struct<'_>>("pcpu_hot").is_some_and(|hot| hot.size() >= 12);
        Self {
            preempt_count: variable("__preempt_count"),
            hot_count,
            irq_disable_state: btf.type_by_name::<Var<'_>>("local_interrupt_disable_state").is_some(),
            apicid: variable("x86_cpu_to_apicid"),
        }
    }
}

/// Decides the layout of the preempt count. Since 7.x (with local_interrupt_disable_state) the hardirq bits have moved;
/// on 64-bit x86 the count became 64 bits wide in the same change.
pub(super) fn layout(types: &Types, survey: &Survey) -> Result<PreemptLayout> {
    let found = format!(
        "__preempt_count of {:?} bytes, pcpu_hot: {}, thread_info.preempt_count at {:?}, local_interrupt_disable_state: {}",
        types.preempt_count,
        types.hot_count,
        (survey.preempt_offset != u32::MAX).then_some(survey.preempt_offset),
        types.irq_disable_state
    );
    match (survey.preempt_offset, types.preempt_count, types.hot_count, types.irq_disable_state) {
        (u32::MAX, Some(8), false, true) => Ok(PreemptLayout::PerCpu64),
        (u32::MAX, Some(4), false, false) => Ok(PreemptLayout::PerCpu32),
        (u32::MAX, None, true, false) => Ok(PreemptLayout::PerCpu32),
        (offset, None, false, true) if offset != u32::MAX => Ok(PreemptLayout::Task64),
        (offset, None, false, false) if offset != u32::MAX => Ok(PreemptLayout::Task32),
        _ => Err(GuestError::UnknownLayout(found, "preempt count")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(preempt_count: Option<usize>, hot_count: bool, irq_disable_state: bool) -> Types {
        Types { preempt_count, hot_count, irq_disable_state, apicid: None }
    }

    fn at(offset: u32) -> Survey {
        Survey { preempt_offset: offset, ..Survey::default() }
    }

    #[test]
    fn known_layouts_are_told_apart_and_others_refused() {
        let x86 = at(u32::MAX);
        let known = |types: Types, survey: &Survey| layout(&types, survey).expect("known");
        assert_eq!(known(types(Some(8), false, true), &x86), PreemptLayout::PerCpu64);
        assert_eq!(known(types(Some(4), false, false), &x86), PreemptLayout::PerCpu32);
        assert_eq!(known(types(None, true, false), &x86), PreemptLayout::PerCpu32);
        assert_eq!(known(types(None, false, true), &at(16)), PreemptLayout::Task64);
        assert_eq!(known(types(None, false, false), &at(16)), PreemptLayout::Task32);
        for unknown in [
            types(Some(8), false, false),
            types(Some(4), false, true),
            types(Some(2), false, false),
            types(None, false, false),
        ] {
            let error = layout(&unknown, &x86).expect_err("unknown").to_string();
            assert!(error.contains("__preempt_count of"), "{error}");
        }
    }
}
