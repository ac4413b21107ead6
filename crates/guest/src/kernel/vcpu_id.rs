//! KVM's numbers of the vCPUs, as the guest's kernel knows them.

use super::layout::Types;
use super::probe::{Probe, Survey};
use crate::error::Result;

/// KVM's vcpu_id of a CPU, where the kernel knows it (it does not for CPUs that were never plugged in).
pub(super) fn of(probe: &Probe<'_>, types: &Types, survey: &Survey) -> Result<Option<u32>> {
    if survey.cpu_logical_map != 0 {
        // KVM on arm64 makes MPIDR from vcpu_id: 4 bits Aff0, 8 bits Aff1, 8 bits Aff2 (reset_mpidr); this is its inverse.
        let mpidr = probe.peek(survey.cpu_logical_map + 8 * u64::from(survey.cpu))?;
        return Ok((mpidr != u64::MAX).then(|| vcpu_id_of_mpidr(mpidr)));
    }
    match (survey.apicid, types.apicid) {
        (0, _) => Ok(None),
        (address, Some(2)) => Ok(Some(probe.peek(address)? as u32 & 0xffff).filter(|&id| id != 0xffff)),
        (address, Some(4)) => Ok(Some(probe.peek(address)? as u32).filter(|&id| id != u32::MAX)),
        _ => Ok(None),
    }
}

fn vcpu_id_of_mpidr(mpidr: u64) -> u32 {
    (mpidr & 0xf | (mpidr >> 8 & 0xff) << 4 | (mpidr >> 16 & 0xff) << 12) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_ids_come_back_from_mpidr() {
        for id in [0_u64, 1, 15, 16, 255, 4095, 4096, 70_000] {
            let mpidr = (id & 0xf) | (id >> 4 & 0xff) << 8 | (id >> 12 & 0xff) << 16 | 1 << 31;
            assert_eq!(u64::from(vcpu_id_of_mpidr(mpidr)), id);
        }
    }
}
