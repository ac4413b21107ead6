//! entrain lab: nested KVM machines on any computer, experiments on them, and their report.
