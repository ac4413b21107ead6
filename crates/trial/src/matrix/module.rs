//! KVM's module, whose pause-loop exiting can only be chosen when it is loaded.

use std::process::Command;

use anyhow::{Context, ensure};
use entrain_system::Root;

/// The vendor's module, and what turns pause-loop exiting off in it. Documentation: modinfo kvm_intel, modinfo kvm_amd.
const VENDORS: [(&str, &str, &str); 2] =
    [("kvm_intel", "ple_gap=0", "ple_gap"), ("kvm_amd", "pause_filter_count=0", "pause_filter_count")];

/// The module that serves this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    name: &'static str,
    off: &'static str,
    /// Parameters as they are, for loading it again: those that were changed on the command line or in modprobe.d come
    /// back by modprobe itself.
    parameter: &'static str,
}

impl Module {
    /// `None` where no module has pause-loop exiting.
    pub(super) fn of(root: &Root) -> Option<Self> {
        let there = |(name, _, parameter): &&(&str, &str, &str)| {
            root.exists(format!("sys/module/{name}/parameters/{parameter}"))
        };
        VENDORS.iter().find(there).map(|&(name, off, parameter)| Self { name, off, parameter })
    }

    /// Why it cannot be loaded anew.
    pub(super) fn hindrance(&self, root: &Root) -> Option<String> {
        let Self { name, .. } = self;
        let users: Option<u32> = root.parse(format!("sys/module/{name}/refcnt"));
        match users {
            None => {
                Some(format!("--ple off: {name} is built into this kernel and cannot be loaded anew: --ple default"))
            }
            Some(0) => None,
            Some(users) => Some(format!("--ple off: {name} is in use ({users} VMs): end them, or give --ple default")),
        }
    }

    /// Loads it without pause-loop exiting; the value gives it back.
    pub(super) fn without_ple(&self) -> anyhow::Result<WithoutPle> {
        let before = Root::live().trimmed(format!("sys/module/{}/parameters/{}", self.name, self.parameter));
        modprobe(&["-r", self.name])?;
        // From here on it is to be given back.
        let loaded = WithoutPle(self.clone());
        modprobe(&[self.name, self.off])?;
        let now = Root::live().trimmed(format!("sys/module/{}/parameters/{}", self.name, self.parameter));
        ensure!(now.as_deref() == Some("0"), "{} did not take {}: it was {before:?}, is {now:?}", self.name, self.off);
        Ok(loaded)
    }
}

/// KVM without pause-loop exiting; dropped, it is loaded as by default.
#[derive(Debug)]
pub(super) struct WithoutPle(Module);

impl Drop for WithoutPle {
    fn drop(&mut self) {
        let back = modprobe(&["-r", self.0.name]).and_then(|()| modprobe(&[self.0.name]));
        if let Err(error) = back {
            eprintln!("entrain trial: {} is loaded with {}: {error:#}", self.0.name, self.0.off);
        }
    }
}

fn modprobe(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("modprobe").args(args).output().context("cannot run modprobe")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "modprobe {}: {}", args.join(" "), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn what_cannot_be_loaded_anew_is_told() {
        let machine = Machine::default();
        assert_eq!(Module::of(&machine.root()), None, "arm64");
        machine.put("sys/module/kvm_amd/parameters/pause_filter_count", "3000");
        let module = Module::of(&machine.root()).expect("AMD's");
        assert!(module.hindrance(&machine.root()).is_some_and(|why| why.contains("built into")));
        machine.put("sys/module/kvm_amd/refcnt", "2\n");
        assert!(module.hindrance(&machine.root()).is_some_and(|why| why.contains("in use (2 VMs)")));
        machine.put("sys/module/kvm_amd/refcnt", "0\n");
        assert_eq!(module.hindrance(&machine.root()), None);
    }
}
